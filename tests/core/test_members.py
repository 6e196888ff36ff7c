"""Who is alive and who leads, by the hub's own clock; and the calls that a dead member left behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangup.core.members import LeftCall, LeftCalls, Members


def look(members: Members, now: float, *heard: str) -> None:
    for member in heard:
        members.note_message(member)
    members.look(now)


def lead(members: Members) -> tuple[str | None, int]:
    return members.leader, members.term


def test_a_silent_member_is_found_by_the_hubs_clock() -> None:
    members = Members(silent_max_s=1.0, look_s=0.5)
    for name in "ab":
        members.join(name)
    for tick in range(3):
        look(members, tick * 0.5, "a", "b")
    look(members, 1.5, "a")
    assert not members.is_silent("b") and members.silent_s("b") == 0.5
    look(members, 2.0, "a")
    assert members.is_silent("b") and not members.is_silent("a")
    look(members, 2.5, "a", "b")
    assert not members.is_silent("b")


def test_time_in_which_the_keeper_was_stopped_counts_for_nobody() -> None:
    members = Members(silent_max_s=2.0, look_s=0.5)
    members.join("a")
    look(members, 0.0)
    look(members, 3600.0)  # a laptop was closed
    assert not members.is_silent("a") and members.silent_s("a") == 0.75


def test_the_oldest_leads_and_each_change_raises_the_term() -> None:
    members = Members(silent_max_s=1.0, look_s=1.0)
    assert lead(members)[0] is None
    for name in "abc":
        members.join(name)
    assert lead(members) == ("a", 1)
    look(members, 0.0)
    look(members, 1.0, "b", "c")
    assert lead(members) == ("b", 2)
    look(members, 2.0, "a", "b", "c")
    assert lead(members) == ("b", 2), "a leader that is well keeps its task"
    members.leave("b")
    assert lead(members) == ("a", 3)
    members.join("a")  # a new process under the same name
    assert lead(members) == ("c", 4)
    members.leave("c")
    members.leave("a")
    assert lead(members)[0] is None
    members.leave("a")
    members.note_message("a")
    assert members.silent_s("a") == 0.0


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "look"]), st.sampled_from("abc"), st.booleans())))
def test_there_is_a_leader_whenever_somebody_is_well(steps: list[tuple[str, str, bool]]) -> None:
    members, here, terms = Members(silent_max_s=1.0, look_s=1.0), set(), [0]
    for now, (step, name, heard) in enumerate(steps):
        before = members.leader
        if step == "join":
            members.join(name)
            here.add(name)
        elif step == "leave":
            members.leave(name)
            here.discard(name)
        else:
            look(members, float(now), *([name] if heard else []))
        well = {name for name in here if not members.is_silent(name)}
        assert members.leader in well if well else members.leader is None
        terms.append(members.term)
        if members.leader != before:
            assert members.term > terms[-2]
    assert terms == sorted(terms)


CALL = LeftCall("c1", "gpu", "key-1")


def test_calls_left_behind_go_to_the_leader_until_it_confirms() -> None:
    left = LeftCalls()
    assert left.take_for(1) == {}
    left.add("a", [])
    assert left.take_for(1) == {} and len(left) == 0
    left.add("a", [CALL])
    assert left.take_for(1) == {"a": (CALL,)}
    assert left.take_for(1) == {}, "asked once"
    assert left.take_for(2) == {"a": (CALL,)}, "the leader died: the next one is asked"
    assert not left.confirmed(1, ["a"]) and len(left) == 1
    assert left.confirmed(2, ["a"]) and len(left) == 0
    assert left.take_for(3) == {}


def test_another_death_is_told_to_the_same_leader() -> None:
    left = LeftCalls()
    left.add("a", [CALL])
    left.take_for(1)
    left.confirmed(1, ["a"])
    left.add("b", [CALL])
    left.add("b", [CALL])
    assert left.take_for(1) == {"b": (CALL, CALL)}
