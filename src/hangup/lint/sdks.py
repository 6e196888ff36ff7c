"""Calls of packages whose verbs say nothing by themselves: in a file that imports the package, these make a model compute."""

from __future__ import annotations

import re

from hangup.lint.source import Module, Site

_WATSONX = re.compile(r"(model|llm|inference|watsonx)\w*\.a?(generate|generate_text|chat)(_stream)?$", re.I)
# By the package's name: what the call is called, with its receiver.
_CALLS = {
    "autogen_agentchat": re.compile(r"(team|agent|chat|assistant)\w*\.(run|run_stream|on_messages|on_messages_stream)$", re.I),
    "browser_use": re.compile(r"agent\w*\.run$", re.I),
    "camel": re.compile(r"agent\w*\.a?step$", re.I),
    "emergentintegrations": re.compile(r"\.send_message$"),
    "google": re.compile(r"\.interactions\.create$"),
    "graphrag": re.compile(r"(^|\.)(local|global|drift|basic)_search(_streaming)?$"),
    "huggingface_hub": re.compile(r"\.(text_generation|chat_completion)$"),
    "ibm_watson_machine_learning": _WATSONX,
    "ibm_watsonx_ai": _WATSONX,
    "replicate": re.compile(r"^replicate\.(async_)?(run|stream)$"),
    "semantic_kernel": re.compile(
        r"kernel\.invoke(_prompt)?(_stream)?$|agent\w*\.(get_response|invoke|invoke_stream)$"
        r"|planner\w*\.(create_plan|invoke)$|(chat|kernel|prompt|semantic)_function\w*\.invoke(_stream)?$",
        re.I,
    ),
}
PACKAGES = frozenset(_CALLS)
STREAMING = ("_stream", "_streaming")


def is_call(module: Module, site: Site) -> bool:
    """Return whether a call is inference of one of these packages."""
    return any(_CALLS[package].search(site.name) is not None for package in module.packages & PACKAGES) or _is_structured(site)


def _is_structured(site: Site) -> bool:
    """Return whether a call asks for an answer of some type, as with instructor: `create(messages=..., response_model=...)`."""
    last = site.name.rpartition(".")[2]
    return last.startswith("create") and site.keyword("response_model") is not None and site.keyword("messages") is not None
