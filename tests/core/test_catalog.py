"""Where a call can go, by its API and its model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangup.core.catalog import Catalog, Found, Offer


def catalog(aliases: dict[str, str] | None = None, **offers: Offer) -> Catalog:
    made = Catalog()
    made.configure(offers, aliases or {})
    return made


def strict(*models: str) -> Offer:
    return Offer(models=frozenset(models), complete=True, asked=True)


def lenient(*models: str) -> Offer:
    return Offer(models=frozenset(models), asked=True)


NEW, NO_LIST = Offer(), Offer(asked=True)


def eligible(made: Catalog, model: str, api: str = "openai") -> set[str] | None:
    found = made.find(api, model).eligible
    return None if found is None else set(found)


def test_two_models_on_two_backends() -> None:
    made = catalog(a=strict("x", "lora"), b=strict("y"))
    assert (eligible(made, "x"), eligible(made, "lora"), eligible(made, "y")) == ({"a"}, {"a"}, {"b"})
    assert eligible(made, "") is None, "a call that names no model goes anywhere"
    assert eligible(made, "z") == set(), "all have said what they have"


def test_what_is_not_known_is_not_absent() -> None:
    assert eligible(catalog(a=strict("x"), b=NEW), "z") == {"b"}
    assert eligible(catalog(a=strict("x"), b=NO_LIST), "z") == {"b"}
    assert eligible(catalog(a=strict("x"), b=lenient("y")), "z") == {"b"}, "it answers to any name"
    assert eligible(catalog(a=NEW, b=NEW), "z") is None


def test_who_has_it_for_sure_is_taken_before_who_may_have_it() -> None:
    assert eligible(catalog(a=strict("x"), b=NEW), "x") == {"a"}
    assert eligible(catalog(a=lenient("x"), b=lenient("y")), "x") == {"a"}
    assert eligible(catalog(a=strict("x"), b=NO_LIST), "x") is None, "what has no list is taken to have everything"


def test_configured_names_are_all_there_is() -> None:
    made = catalog(a=Offer(patterns=("gpt-*", "o3")), b=Offer(patterns=("*",)))
    assert eligible(made, "gpt-5") is None and eligible(made, "o3-mini") == {"b"}
    made = catalog(a=Offer(patterns=("gpt-*",), models=frozenset(["gpt-5", "tts-1"]), asked=True))
    assert eligible(made, "tts-1") == set() and made.names() == ["gpt-5"]


def test_a_call_goes_to_those_that_speak_its_api() -> None:
    made = catalog(open=Offer(frozenset(["openai"])), anthropic=Offer(frozenset(["anthropic"])), any=NEW)
    assert eligible(made, "m", "anthropic") == {"anthropic", "any"}
    assert eligible(made, "m", "") is None
    made = catalog(open=Offer(frozenset(["openai"])), anthropic=Offer(frozenset(["anthropic"])))
    assert eligible(made, "m", "ollama") is None, "nobody is known to speak it, so they are asked"
    made = catalog(open=Offer(frozenset(["openai"]), apis_only=True))
    assert eligible(made, "m", "ollama") == set() and not made.speaks("ollama")


def test_an_alias_goes_where_the_model_is() -> None:
    made = catalog({"fast": "x", "lost": "q"}, a=strict("x"), b=strict("y"))
    assert made.find("openai", "fast") == Found(frozenset(["a"]), "x", True)
    assert made.find("openai", "x") == Found(frozenset(["a"]), "x", False)
    assert made.names() == ["fast", "x", "y"], "an alias of nothing is not listed"


def test_who_refused_is_asked_last_for_a_while_and_never_left_out() -> None:
    made = catalog(a=NO_LIST, b=NO_LIST)
    made.refused("a", "openai", "x", until=10.0)
    assert eligible(made, "x") == {"b"} and eligible(made, "y") is None and eligible(made, "x", "anthropic") is None
    made.refused("b", "openai", "x", until=20.0)
    assert eligible(made, "x") is None, "if all refused it, they are all asked again: one may have it by now"
    made.expire(10.0)
    assert eligible(made, "x") == {"a"}
    made.expire(20.0)
    assert eligible(made, "x") is None


def test_what_backends_have_is_followed() -> None:
    made = catalog(a=strict("x"), b=strict("y"))
    assert eligible(made, "new") == set()
    assert made.learn("b", strict("y", "new")) and not made.learn("b", strict("y", "new"))
    assert eligible(made, "new") == {"b"}


def test_nearest_names() -> None:
    made = catalog({"fast": "Qwen/Qwen3-8B"}, a=strict("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"))
    assert made.nearest("qwen3-8b") == ["Qwen/Qwen3-8B"]
    assert made.nearest("llama-3.1-8b-instruct")[0] == "meta-llama/Llama-3.1-8B-Instruct"
    assert made.nearest("fasst") == ["fast"]
    assert made.nearest("zzzzzzzzzz") == [] == made.nearest("q" * 1000)


def test_tags() -> None:
    made = catalog(a=Offer(models=frozenset(["base"]), asked=True, tagged=True), b=lenient("other"))
    assert eligible(made, "base:adapter") == {"a"}


def test_names_of_clients_fill_no_memory() -> None:
    made = catalog(a=strict("x"), b=NO_LIST)
    for at in range(10_000):
        made.find("openai", f"m{at}")
        made.refused("b", "openai", f"m{at}", until=1e9)
    assert len(made._found) <= 4096 and len(made._refused) <= 1024


NAMES = st.sampled_from(["x", "y", "z", "w"])


def test_answers_are_kept_but_not_for_every_name_that_clients_make_up() -> None:
    made = catalog(a=lenient("m"), b=lenient())
    first = made.find("openai", "m")
    made.find("openai", "n")
    assert made.find("openai", "m") is first
    for at in range(5000):
        made.find("openai", f"made up {at}")
        assert len(made._found) <= 4096
    assert made.find("openai", "m") == first


OFFERS = st.builds(
    Offer,
    apis=st.one_of(st.none(), st.frozensets(st.sampled_from(["openai", "anthropic"]))),
    apis_only=st.booleans(),
    models=st.one_of(st.none(), st.frozensets(NAMES)),
    patterns=st.one_of(st.just(()), st.tuples(NAMES), st.just(("*",))),
    complete=st.booleans(),
    asked=st.booleans(),
)
REFUSED = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["openai", "anthropic"]), NAMES))


@given(
    st.dictionaries(st.sampled_from("abc"), OFFERS, min_size=1), st.sampled_from(["", "openai", "anthropic"]), NAMES, REFUSED
)
def test_a_call_is_refused_only_by_those_who_said_all(
    offers: dict[str, Offer], api: str, model: str, refused: list[tuple[str, str, str]]
) -> None:
    made = Catalog()
    made.configure(offers, {})
    for backend, of_api, of_model in refused:
        made.refused(backend, of_api, of_model, until=1.0)
    found = made.find(api, model).eligible
    chosen = set(offers) if found is None else set(found)
    assert chosen <= set(offers)
    for name, offer in offers.items():
        closed = bool(api) and offer.apis_only and offer.apis is not None and api not in offer.apis
        if name in chosen:
            assert not closed and (offer.has(model) or not offer.exact)
        elif not chosen:
            unspoken = bool(api) and offer.apis is not None and api not in offer.apis
            assert closed or unspoken or (offer.exact and not offer.has(model)), "it might have answered"
    assert made.find(api, model) == made.find(api, model)
