"""What a function is for, by its name, if that is not to answer a client with generated text."""

from __future__ import annotations

import re
from functools import cache

# It tries out whether a model or a key works, with a prompt of a word or two.
_CHECKS = re.compile(
    r"(^|[_/-])(health(z|_?checks?)?$|health[_/-](checks?|status|live\w*|ready|probe|detail\w*|full|deep|llm|models?|db)"
    r"|ping|probe|warm_?up|self_?test|status)([_/-]|$)"
    r"|^test([_-]|$)|/test([/_-]|$)|[_-]test$"
    r"|(^|[_/-])(test|check|validate|verify)[_-]?(\w*_)?(connect\w*|connectivity|keys?|api_?keys?|providers?|models?|llms?|credentials?|servers?|endpoints?|availab\w*|status|configs?)$",
    re.I,
)
# What is written about images, music or videos is text: generate_video_summary.
_TEXTS = (
    r"(\w+[_-])?(summar\w+|prompts?|scripts?|captions?|descri\w+|titles?|texts?|notes?|quiz\w*|questions?|answers?|chapters?|ideas?"
    r"|plans?|tags?)"
)
# It computes speech, images, music, video or vectors.
_MEDIA = re.compile(
    r"((^|[_/-])(?<!with[_-])(tts|asr|stt)|(^|[_/-])(speech\w*|transcri(?!pts?(?![a-z]))\w+|dictat\w+|audio2text|text2(speech|image|audio|video)|embed\w*|rerank\w*))([_/-]|$)"
    r"|(?<!with[_-])speech|(text|txt|image|img|video|audio)_?to_?(image|video|audio|music)"
    r"|(^|[_/-])(generate|generation|create|edit|synthesi[sz]e)[_/-]?((?!from|for|with|about|of|to|by|on)[a-z0-9]+[_/-])?(images?|videos?|audios?|music|songs?|voices?|sounds?)"
    rf"(?![_/-]{_TEXTS})([_/-]|$)"
    r"|(^|[_/-])(images?|videos?|audios?|music|songs?|sounds?|voices?)[_/-]?(generat\w+|edits?|creation|creat\w+|synthesi\w+)([_/-]|$)",
    re.I,
)
# A call that writes a text, also about speech or images: client.chat.completions.create, summarize_transcript.
_WRITES_TEXT = re.compile(r"(^|[_.])(summar\w+|translat\w+|answer|chat|ask|explain|analy[sz]e)([_.]|$)", re.I)
# It works through what is stored, for all users or as an operator's batch, or sends a message to somebody else.
_BATCHES = re.compile(
    r"(^|[_/-])(back_?fill\w*|re_?process_all)([_/-]|$)|[_-]for_(all|every)([_-]|$)"
    r"|(^|[_/-])memor(y|ies)[_/-](digests?|consolidat\w*)([_/-]|$)|(^|[_/-])(memor(y|ies)|weekly|nightly|daily)[_/-]consolidat\w*"
    r"|(^|[_/-])index(ing)?[_/-]((all|full)([_/-]|$)|(\w+_)?(data_?sources?|documents?|docs|files?|folders?|repos?|repository|schemas?|corpus|codebase)$)"
    r"|(^|_)(generate|build|create)_(\w+_)?(datasets?|testsets?|benchmarks?)(_|$)"
    r"|(^|_)(send|fire|push|dispatch|deliver)_(\w+_)?(notifications?|emails?|alerts?|sms|digests?)(_|$)",
    re.I,
)
# Who calls it waits for no answer: another service, or an operator who wants something stored.
_NO_CLIENT = re.compile(
    r"(^|[_/-])(web_?hooks?|callbacks?|cron|ingest\w*|re_?index\w*|train\w*)([_/-]|$)"
    r"|(slack|telegram|whatsapp|discord|feishu|lark|dingtalk)[_/-](events?|updates?|interactions?)([_/-]|$)",
    re.I,
)
# It tells what a text is about, in a word or two, and writes none.
_LABELS = re.compile(
    r"(^|[_.])classif(y|ies|ication)(_|$)"
    r"|(^|[_.])(detect|recogni[sz]e|identify|predict|understand|analy[sz]e|parse|extract)_(\w+_)?(intents?|follow_?up)(_|$)"
    r"|(^|[_.])(detect|recogni[sz]e|identify|predict)_(\w+_)?(languages?|lang|dialects?|sentiments?|emotions?|topics?|toxicity)(_|$)"
    r"|(intent|classifi\w+)\w*\.(recogni[sz]e|classify|detect|predict|identify)$",
    re.I,
)
# It answers with generated text: a route or a handler for a chat, a question or a summary.
_ANSWERS = re.compile(
    r"(^|[/_-])(chat\w*|ask\w*|answers?|query|question|completions?|generate\w*|messages?|reply|converse|conversation|talk|summari[sz]e\w*"
    r"|summary|translat\w*|explain\w*|infer\w*|predict\w*|prompt\w*|llm|invoke|assist\w*)([/_-]|$)",
    re.I,
)
# What is called is a model, or says that it generates.
_GENERATES = re.compile(
    r"llm|gpt|openai|gemini|claude|anthropic|ollama|chat|generat|complet|(^|[_.])ask|answer|agent|summar|invoke|prompt|assistant|chain"
    r"|(?<!para)graph(?!ql)|crew|translat|explain|analy[sz]e|suggest|recommend|(?<!p)review|rewrit|infer|predict|(?-i:(?<![A-Za-z])(rag|RAG|Rag|bot|Bot)(?![a-z]))|(rag|bot)(_|\.|\(|$)",
    re.I,
)
# Whoever calls it tries something out, or looks after the service: the text is not what they wait for.
_OTHER_ENDS = re.compile(
    r"(^|[_/-])(demo|dev|debug\w*|echo|evals?|judges?|benchmarks?|red[_-]?team\w*|admin|weekly|nightly|monthly|artifacts?|titles?)([_/-]|$)"
    r"|[_-]and[_-](send|post|publish|e?mail|tweet)([_/-]|$)",
    re.I,
)
# Whoever calls it hands something in, or works through many things; what they get back may be text, or a note that it is done.
_TAKES_IN = re.compile(
    r"(^|[_/-])(uploads?|imports?|scans?|batch\w*|all|re_?process\w*|memor(y|ies)|preferences?|learnings|reflect\w*|mcp)([_/-]|$)",
    re.I,
)
_STORES = re.compile(
    r"(^|\.)(commit|a?save|insert(_one|_many)?|upsert|put_item|bulk_create)$"
    r"|(^|[._])(objects|\w*repo\w*|crud|dao|storage|db|database)\.(create|add|save|insert|record|store)(_\w+)?$"
    r"|(^|[._])(save|store|persist|insert)_(?!\w*(messages?|history|turn|chat|conversation|session|usage|logs?|cache|memory|upload|files?|image|audio"
    r"|embeddings?|vectors?|chunks?|documents?|feedback|state|checkpoint|token|settings?|config|cookie|user)(_|$))\w+$",
    re.I,
)
# A client asks it something, or writes to it: the answer is for now, whatever is stored of it.
_CONVERSES = re.compile(
    r"(^|[/_-])(chat\w*|ask\w*|query|completions?|converse|conversation|talk|translat\w*|explain\w*)([/_-]|$)",
    re.I,
)
_WRITES_TO = re.compile(r"(^|[/_-])(messages?|prompt\w*|invoke|assist\w*|search|respond|response)([/_-]|$)", re.I)
# A client wants a text: what is generated is what it waits for.
_WANTS = re.compile(
    r"(^|[/_-])(re_?)?(generat\w*|analy[sz]\w*|suggest\w*|recommend\w*|compar\w*|insights?|rewrit\w*|write|writing|refin\w*|rephras\w*"
    r"|optimi[sz]\w*|improv\w*|enhanc\w*|summar\w*|plans?|drafts?|compose|hints?|opinions?|advi[cs]e|justify|investigat\w*"
    r"|transliterat\w*|extract\w*|interpret\w*|diagnos\w*|describe|description|critique|review|brainstorm\w*|brief|coach\w*|report"
    r"|sql|quiz\w*|recipes?|stor(y|ies)|llm|gpt|ai|agents?|agentic|answers?|repl(y|ies))([/_-]|$)",
    re.I,
)
# A client hands something in, or has something done: it may be wanted whether or not the client waits for it.
_HANDS_IN = re.compile(r"^(create|add|save|submit|update|edit|retry|delete|log|register|queue|schedule|complete)_", re.I)
_HAS_DONE = re.compile(
    r"(^|[/_-])(evaluat\w*|feedbacks?|categori[sz]\w*|label\w*|reminders?|sync\w*|queue\w*|schedul\w*|compress\w*|evolve\w*|trigger\w*"
    r"|bulk\w*|replay\w*|attack\w*|publish)([/_-]|$)",
    re.I,
)
_CONFIRMS = re.compile(r"(^|[/_-])(resume|confirm\w*|approv\w*|reject\w*)([/_-]|$)", re.I)
# A file that was kept when another took its place; `legacy` routes in a file of their own may well be served.
_OLD_COPY = re.compile(r"(^|[/_.-])(back_?ups?|bak|old|archived?|deprecated|original|copy)(\d|[/_.-]|$)|(^|/)legacy/", re.I)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@cache
def is_no_answer(name: str, called: str = "") -> bool:
    """Return whether a function with this name generates no text for a client; `called` may say that it writes some."""
    words = _CAMEL.sub("_", name)
    if _MEDIA.search(words) is not None and _WRITES_TEXT.search(called) is None:
        return True
    return _CHECKS.search(words) is not None or _BATCHES.search(words) is not None


@cache
def only_labels(name: str, class_name: str) -> bool:
    """Return whether a function, or a method of a class, classifies what it is given."""
    return _LABELS.search(f"{_CAMEL.sub('_', class_name)}.{name}" if class_name else name) is not None


def has_no_client(name: str) -> bool:
    """Return whether nobody waits for the answer of a handler with this name or path, or it is none of text."""
    return bool(name) and (is_no_answer(name) or _NO_CLIENT.search(_CAMEL.sub("_", name)) is not None)


def makes_media(path: str) -> bool:
    """Return whether a file is about speech, images, video or vectors, by its name and its folder's."""
    return _MEDIA.search("/".join(path.removesuffix(".py").split("/")[-2:])) is not None


def says_answer(name: str) -> bool:
    """Return whether a handler with this name, or a route with this path, answers with generated text."""
    return _ANSWERS.search(name) is not None


def has_other_end(name: str) -> bool:
    """Return whether a handler, a route or a function serves another end than an answer by its name, though it may answer."""
    return _OTHER_ENDS.search(_CAMEL.sub("_", name)) is not None


def takes_in(name: str) -> bool:
    """Return whether a handler, a route or a function takes something in by its name."""
    return _TAKES_IN.search(_CAMEL.sub("_", name)) is not None


def is_storing(call: str) -> bool:
    """Return whether a call writes to a database, by its name."""
    return _STORES.search(call) is not None


def converses(name: str, path: str) -> bool:
    """Return whether a client asks a handler something, by its name or its path, and so waits for what it says."""
    asks = bool(_CONVERSES.search(path)) or (bool(_CONVERSES.search(name)) and not _HANDS_IN.search(name))
    return asks and not _confirms(name, path)


def is_written_to(name: str, path: str) -> bool:
    """Return whether a client asks a handler something, or sends it a message, by its name or its path."""
    found = any(p.search(text) is not None for p in (_CONVERSES, _WRITES_TO) for text in (name, path))
    return found and not _confirms(name, path)


def wants_text(name: str, path: str) -> bool:
    """Return whether a client wants a handler to write something for it, by the handler's name or path."""
    return any(_WANTS.search(text) is not None for text in (_CAMEL.sub("_", name), path))


def has_something_done(name: str, path: str) -> bool:
    """Return whether a client hands something in, or starts something, that may be wanted even if it does not wait."""
    words = _CAMEL.sub("_", name)
    if _HANDS_IN.search(words) is not None or _confirms(words, path):
        return True
    return _HAS_DONE.search(words) is not None or _HAS_DONE.search(path) is not None


def _confirms(name: str, path: str) -> bool:
    """Return whether a client lets something go on that it was asked about: `/chat/confirm`."""
    return _CONFIRMS.search(name) is not None or _CONFIRMS.search(path) is not None


def says_generation(reference: str) -> bool:
    """Return whether what is called generates text by its name, or by that of its receiver."""
    return _GENERATES.search(reference) is not None


def is_old_copy(path: str) -> bool:
    """Return whether a file is an old copy of another by its path: backups/2024/app.py, main_original.py."""
    return _OLD_COPY.search(path.removesuffix(".py")) is not None
