"""Which backends can serve a call, by its API and its model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangup.core.catalog import Catalog, Found, Offer


def new_catalog(aliases: dict[str, str] | None = None, **offers: Offer) -> Catalog:
    catalog = Catalog()
    catalog.configure(offers, aliases or {})
    return catalog


def strict(*models: str) -> Offer:
    return Offer(models=frozenset(models), complete=True, asked=True)


def lenient(*models: str) -> Offer:
    return Offer(models=frozenset(models), asked=True)


NEW, NO_LIST = Offer(), Offer(asked=True)


def eligible(catalog: Catalog, model: str, api: str = "openai") -> set[str] | None:
    found = catalog.find(api, model).eligible
    return None if found is None else set(found)


def test_two_models_on_two_backends() -> None:
    catalog = new_catalog(a=strict("x", "lora"), b=strict("y"))
    assert (eligible(catalog, "x"), eligible(catalog, "lora"), eligible(catalog, "y")) == ({"a"}, {"a"}, {"b"})
    assert eligible(catalog, "") is None, "a call that names no model goes anywhere"
    assert eligible(catalog, "z") == set(), "all have said what they have"


def test_what_is_not_known_is_not_absent() -> None:
    assert eligible(new_catalog(a=strict("x"), b=NEW), "z") == {"b"}
    assert eligible(new_catalog(a=strict("x"), b=NO_LIST), "z") == {"b"}
    assert eligible(new_catalog(a=strict("x"), b=lenient("y")), "z") == {"b"}, "it answers to any name"
    assert eligible(new_catalog(a=NEW, b=NEW), "z") is None


def test_who_has_it_for_sure_is_taken_before_who_may_have_it() -> None:
    assert eligible(new_catalog(a=strict("x"), b=NEW), "x") == {"a"}
    assert eligible(new_catalog(a=lenient("x"), b=lenient("y")), "x") == {"a"}
    assert eligible(new_catalog(a=strict("x"), b=NO_LIST), "x") is None, "what has no list is taken to have everything"


def test_configured_names_are_all_there_is() -> None:
    catalog = new_catalog(a=Offer(names=frozenset(["o3"]), patterns=("gpt-*",)), b=Offer(patterns=("*",)))
    assert eligible(catalog, "gpt-5") is None and eligible(catalog, "o3-mini") == {"b"}
    catalog = new_catalog(a=Offer(patterns=("gpt-*",), models=frozenset(["gpt-5", "tts-1"]), asked=True))
    assert eligible(catalog, "tts-1") == set() and catalog.names() == ["gpt-5"]


class _Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_many_configured_names_are_not_compared_one_by_one() -> None:
    offer = Offer(names=frozenset(_Counted(f"model-{n}") for n in range(500)))
    _Counted.compared = 0
    assert offer.has("model-77") and not offer.has("model-777")
    assert _Counted.compared < 10


def test_a_call_goes_to_those_that_speak_its_api() -> None:
    catalog = new_catalog(open=Offer(frozenset(["openai"])), anthropic=Offer(frozenset(["anthropic"])), any=NEW)
    assert eligible(catalog, "m", "anthropic") == {"anthropic", "any"}
    assert eligible(catalog, "m", "") is None
    catalog = new_catalog(open=Offer(frozenset(["openai"])), anthropic=Offer(frozenset(["anthropic"])))
    assert eligible(catalog, "m", "ollama") is None, "nobody is known to speak it, so they are asked"
    catalog = new_catalog(open=Offer(frozenset(["openai"]), apis_only=True))
    assert eligible(catalog, "m", "ollama") == set() and not catalog.speaks("ollama")


def test_an_alias_goes_where_the_model_is() -> None:
    catalog = new_catalog({"fast": "x", "lost": "q"}, a=strict("x"), b=strict("y"))
    assert catalog.find("openai", "fast") == Found(frozenset(["a"]), "x", True)
    assert catalog.find("openai", "x") == Found(frozenset(["a"]), "x", False)
    assert catalog.names() == ["fast", "x", "y"], "an alias of nothing is not listed"


def test_who_refused_is_asked_last_for_a_while_and_never_left_out() -> None:
    catalog = new_catalog(a=NO_LIST, b=NO_LIST)
    catalog.refused("a", "openai", "x", until=10.0)
    assert eligible(catalog, "x") == {"b"} and eligible(catalog, "y") is None and eligible(catalog, "x", "anthropic") is None
    catalog.refused("b", "openai", "x", until=20.0)
    assert eligible(catalog, "x") is None, "if all refused it, they are all asked again: one may have it by now"
    catalog.expire(10.0)
    assert eligible(catalog, "x") == {"a"}
    catalog.expire(20.0)
    assert eligible(catalog, "x") is None


def test_what_backends_have_is_followed() -> None:
    catalog = new_catalog(a=strict("x"), b=strict("y"))
    assert eligible(catalog, "new") == set()
    assert catalog.learn("b", strict("y", "new")) and not catalog.learn("b", strict("y", "new"))
    assert eligible(catalog, "new") == {"b"}


def test_nearest_names() -> None:
    catalog = new_catalog({"fast": "Qwen/Qwen3-8B"}, a=strict("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"))
    assert catalog.nearest("qwen3-8b") == ["Qwen/Qwen3-8B"]
    assert catalog.nearest("llama-3.1-8b-instruct")[0] == "meta-llama/Llama-3.1-8B-Instruct"
    assert catalog.nearest("fasst") == ["fast"]
    assert catalog.nearest("zzzzzzzzzz") == [] == catalog.nearest("q" * 1000)


def test_tags() -> None:
    catalog = new_catalog(a=Offer(models=frozenset(["base"]), asked=True, tagged=True), b=lenient("other"))
    assert eligible(catalog, "base:adapter") == {"a"}


def test_names_of_clients_fill_no_memory() -> None:
    catalog = new_catalog(a=strict("x"), b=NO_LIST)
    for at in range(10_000):
        catalog.find("openai", f"m{at}")
        catalog.refused("b", "openai", f"m{at}", until=1e9)
    assert len(catalog._found) <= 4096 and len(catalog._refused) <= 1024


NAMES = st.sampled_from(["x", "y", "z", "w"])


def test_answers_are_kept_but_not_for_every_name_that_clients_make_up() -> None:
    catalog = new_catalog(a=lenient("m"), b=lenient())
    first = catalog.find("openai", "m")
    catalog.find("openai", "n")
    assert catalog.find("openai", "m") is first
    for at in range(5000):
        catalog.find("openai", f"made up {at}")
        assert len(catalog._found) <= 4096
    assert catalog.find("openai", "m") == first


OFFERS = st.builds(
    Offer,
    apis=st.one_of(st.none(), st.frozensets(st.sampled_from(["openai", "anthropic"]))),
    apis_only=st.booleans(),
    models=st.one_of(st.none(), st.frozensets(NAMES)),
    names=st.frozensets(NAMES, max_size=1),
    patterns=st.one_of(st.just(()), st.just(("*",))),
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
    catalog = Catalog()
    catalog.configure(offers, {})
    for backend, of_api, of_model in refused:
        catalog.refused(backend, of_api, of_model, until=1.0)
    found = catalog.find(api, model).eligible
    chosen = set(offers) if found is None else set(found)
    assert chosen <= set(offers)
    for name, offer in offers.items():
        closed = bool(api) and offer.apis_only and offer.apis is not None and api not in offer.apis
        if name in chosen:
            assert not closed and (offer.has(model) or not offer.exact)
        elif not chosen:
            unspoken = bool(api) and offer.apis is not None and api not in offer.apis
            assert closed or unspoken or (offer.exact and not offer.has(model)), "it might have answered"
    assert catalog.find(api, model) == catalog.find(api, model)
