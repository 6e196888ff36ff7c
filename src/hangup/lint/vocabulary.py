"""What inference looks like in Python: the calls that make an engine compute, and whether they stream or block.

A syntax tree holds only names. A call counts as inference if its verb belongs to one SDK alone, if its receiver was made by
such an SDK in this file, if its arguments are those of a generation, or if its receiver is called what people call a model.
"""

from __future__ import annotations

import ast
import re
from functools import cache

from hangup.lint import sdks
from hangup.lint.facts import UNKNOWN
from hangup.lint.http_calls import HTTP_VERBS, SENDS, bodies, is_http_call, names_api
from hangup.lint.source import Module, Site
from hangup.lint.text import last_name

# Verbs that no other library uses.
OWN_VERBS = frozenset(
    "acompletion atext_completion ainvoke astream astream_events astream_log abatch generate_content generate_content_async"
    " generate_content_stream create_chat_completion astream_chat astream_complete kickoff"
    " kickoff_async aquery achat acomplete"
    " invoke_model invoke_model_with_response_stream converse converse_stream run_streamed agenerate_prompt"
    " invoke_agent retrieve_and_generate initiate_chat a_initiate_chat get_chat_message_content get_chat_message_contents"
    " create_and_poll create_and_run_poll submit_tool_outputs_and_poll"
    " kickoff_for_each kickoff_for_each_async akickoff call_function_async call_function_sync".split()
)
_SDK_TAILS = (
    "chat.completions.create",
    "chat.completions.parse",
    "chat.completions.stream",
    "completions.create",
    "Completion.create",
    "Completion.acreate",
    "chat.complete_async",
    "chat.stream_async",
    "chat.complete",
)
# Verbs of these classes' instances that are inference.
CLIENTS = {
    "ollama.Client": frozenset({"chat", "generate"}),
    "ollama.AsyncClient": frozenset({"chat", "generate"}),
    "cohere.Client": frozenset({"chat", "generate"}),
    "cohere.ClientV2": frozenset({"chat"}),
    "cohere.AsyncClient": frozenset({"chat", "generate"}),
    "litellm.Router": frozenset({"completion", "text_completion"}),
}
_FUNCTIONS = frozenset(
    {
        *(f"litellm.{name}" for name in ("completion", "text_completion", "responses", "aresponses")),
        "ollama.chat",
        "ollama.generate",
        "agents.Runner.run",
        "agents.Runner.run_sync",
        "replicate.run",
        "dashscope.Generation.call",
        "mlx_lm.generate",
        "mlx_lm.stream_generate",
        "mlx_vlm.generate",
        "mlx_vlm.stream_generate",
        "claude_agent_sdk.query",
        "claude_code_sdk.query",
    }
)
# What these receivers do is no generation, whatever the verb.
NOT_MODELS = frozenset(
    "retriever tool tools prompt parser loader embedding embeddings embedder store vectorstore lambda function"
    " splitter reranker"
    " template memory tokenizer whisper tts asr stt ocr".split()
)
# Other words in the name of a function that asks a model: call_llm, llm_generate_fn.
_ASKING = frozenset(
    "ask async call chat complete completion fn func function generate generator invoke query run runner".split()
)
_MODEL_NAMES = frozenset("llm chain model agent graph chat runnable executor workflow engine llama chatbot".split())
CHAIN_VERBS = frozenset("invoke batch predict apredict arun agenerate stream run acall apply".split())
AGENT_VERBS = frozenset(
    "run arun run_sync run_stream print_response aprint_response chat achat acomplete complete invoke_async".split()
)
ENGINE_VERBS = frozenset("generate async_generate generate_async generate_stream stream_generate generate_request".split())
_ENGINE_NAMES = frozenset("engine llm model llama".split())
INDEX_VERBS = frozenset("query aquery chat achat stream_chat astream_chat complete acomplete stream_complete".split())
FRAMEWORKS_OF_CHAINS = frozenset(
    "langchain langchain_core langchain_openai langchain_community langchain_anthropic langchain_ollama langchain_google_genai"
    " langchain_groq langgraph langchain_classic langserve".split()
)
AGENT_PACKAGES = frozenset("pydantic_ai agno phi crewai smolagents agents autogen strands google llama_index haystack".split())
LOCAL_ENGINES = frozenset("transformers torch llama_cpp mlx_lm mlx_vlm ctransformers vllm".split())
GENERATION_KEYWORDS = ("input_ids", "max_new_tokens", "streamer", "generation_config", "logits_processor", "sampling_params")

# Names whose calls make an object that computes when it is used.
ASYNC_CLIENTS = frozenset(
    "AsyncOpenAI AsyncAzureOpenAI AsyncAnthropic AsyncGroq AsyncTogether AsyncInferenceClient AsyncMistral"
    " AsyncAnthropicBedrock"
    " AsyncAnthropicVertex AsyncCerebras AsyncFireworks AsyncLLMEngine AsyncCohere AsyncClientV2".split()
)
SYNC_CLIENTS = frozenset(
    "OpenAI AzureOpenAI Anthropic AnthropicBedrock AnthropicVertex Groq Mistral Together InferenceClient ZhipuAI"
    " Cerebras".split()
)
CHAINS = frozenset(
    "ChatOpenAI AzureChatOpenAI ChatAnthropic ChatOllama ChatGroq ChatGoogleGenerativeAI ChatVertexAI ChatBedrock OllamaLLM"
    " ChatBedrockConverse ChatMistralAI ChatLiteLLM init_chat_model AgentExecutor initialize_agent create_react_agent"
    " create_agent"
    " create_sql_agent LLMChain ConversationChain ConversationalRetrievalChain RetrievalQA load_qa_chain load_summarize_chain"
    " create_retrieval_chain create_stuff_documents_chain HuggingFacePipeline HuggingFaceEndpoint LlamaCpp VLLM"
    " RunnableWithMessageHistory"
    " GPT4All create_deep_agent create_supervisor from_chain_type from_llm from_llm_and_tools".split()
)
# Verbs that are inference on what another file may have made.
MADE_VERBS = frozenset(
    "invoke ainvoke stream astream astream_events batch abatch predict apredict run arun run_sync run_stream generate"
    " create_chat_completion create_completion chat acall".split()
)
LOCAL_MODELS = frozenset({"from_pretrained", "Llama", "LLM", "AutoModelForCausalLM"})
_MOVES = frozenset({"eval", "to", "cuda", "half", "bfloat16", "float", "requires_grad_"})
_PIPELINE = "transformers.pipeline"
# What they make is called itself.
_CALLED = frozenset({_PIPELINE, "strands.Agent", "llama_cpp.Llama", "ctransformers.AutoModelForCausalLM.from_pretrained"})
_CALLED_PACKAGES = frozenset(name.partition(".")[0] for name in _CALLED)
# Their verbs block, unless the verb says otherwise.
BLOCKING_AGENTS = frozenset({"strands.Agent", "haystack.components.agents.Agent", "hangup.pipeline"})
# Tasks of pipelines that write no text.
_OTHER_TASKS = re.compile(
    r"classif|sentiment|^ner$|fill-mask|feature|speech|audio|detect|segment|depth|question-answering|matching|to-image"
)
# They run what they are given later, or elsewhere.
_ONLY_HOLD = frozenset("partial Thread submit add_task create_task to_thread run_in_executor run_in_threadpool".split())
STREAM_VERBS = frozenset(
    "stream astream astream_events astream_log stream_chat astream_chat astream_complete stream_complete"
    " generate_content_stream"
    " generate_stream stream_generate converse_stream invoke_model_with_response_stream run_streamed run_stream stream_async"
    " generate_content_stream_async run_async".split()
)

_CAPPED_TAILS = tuple(
    "completions.create completions.parse completions.stream responses.create responses.stream responses.parse".split()
)
_CAPPED_FUNCTIONS = frozenset({"litellm.completion", "litellm.acompletion"})
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict", "options", "extra_body", "config")

BRIEF_TOKENS_MAX = 50
# Whose `model.predict(features)` has numbers or labels for an answer.
_CLASSIFYING = frozenset("numpy pandas sklearn xgboost lightgbm catboost joblib tensorflow keras".split())

# Any call that is inference ends in one of these, unless it calls a chain, a model or a pipeline itself.
_POSSIBLE = (
    OWN_VERBS | CHAIN_VERBS | AGENT_VERBS | ENGINE_VERBS | INDEX_VERBS | HTTP_VERBS | MADE_VERBS
    | frozenset(
        "run_async retrieve"
        " create parse acreate complete_async stream_async text_generation chat_completion send_message send_message_async"
        " completion text_completion responses aresponses call __call__".split()
    )
)  # fmt: skip


def direct(module: Module, site: Site) -> str:
    """Return the verb by which this call makes an engine compute; "" if nothing shows that it does."""
    receiver, _, verb = site.name.rpartition(".")
    if sdks.is_call(module, site):
        return verb
    calls_made = not module.packages.isdisjoint(_CALLED_PACKAGES)  # pipe(prompt), agent(prompt)
    if verb not in _POSSIBLE and not calls_made and not _is_called_itself(module, site):
        return verb if SENDS.search(verb) and names_api(module, site) else ""  # the latter as most calls
    if site.keyword("mock_response") is not None or isinstance(site.statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return ""  # a mock, or a decorator: @app.post("/v1/chat/completions") calls nobody
    if _is_sdk_call(module, site, receiver, verb) or _is_named_call(module, site, receiver, verb) or is_http_call(module, site):
        return verb
    made = maker_of(module, site)
    if made and (is_made_call(made, verb) or (made in _CALLED and _is_called(site))):
        return verb
    return ""


def given_method(module: Module, site: Site) -> Site | None:
    """Return the call that a function makes of a method that it is given: retry(client.chat.completions.create, model=...)."""
    first = site.node.args[0] if site.node.args else None
    if not isinstance(first, ast.Attribute) or first.attr not in _POSSIBLE or site.awaited:
        return None
    if site.keyword("messages", "input", "contents", "prompt") is None or site.name.rpartition(".")[2] in _ONLY_HOLD:
        return None
    call = ast.Call(func=first, args=site.node.args[1:], keywords=site.node.keywords)
    return Site(call, module.dotted(first), site.frame, site.statement)


def _is_called(site: Site) -> bool:
    """Return whether the pipeline itself is called, `pipe(prompt)` or `self.pipe(prompt)`, not a method of it."""
    func = site.node.func
    return isinstance(func, ast.Name) or (
        isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"
    )


_CAMEL = re.compile(r"([a-z])([A-Z])")


@cache
def _words(name: str) -> frozenset[str]:
    """Return the words of a receiver's last part: {"query", "engine"} for self.query_engine and for queryEngine."""
    last = name.rpartition(".")[2]
    return frozenset(_CAMEL.sub(r"\1_\2", last).lower().strip("_").split("_"))


def _is_sdk_call(module: Module, site: Site, receiver: str, verb: str) -> bool:
    name = site.name
    if name in _FUNCTIONS:
        return True
    if not receiver:
        return False
    if name.endswith(_SDK_TAILS):
        return True
    if name.endswith(("messages.create", "messages.stream")):
        if site.has_double_star and not site.node.args and "anthropic" in module.packages:
            return "threads" not in name  # Twilio sends messages by a call of the same name
        return (
            "threads" not in name and site.keyword("messages") is not None and site.keyword("max_tokens", "model") is not None
        )
    if name.endswith(("responses.create", "responses.stream", "responses.parse")):
        return site.keyword("input", "model", "prompt") is not None or site.has_double_star
    if verb in {"text_generation", "chat_completion"}:
        return "client" in receiver.lower() and site.keyword("messages", "model", "max_new_tokens", "max_tokens") is not None
    if verb == "chat" and site.keyword("messages") is not None and site.keyword("model") is not None:
        return True
    if verb in OWN_VERBS and not _words(receiver) & NOT_MODELS and not site.is_given_to_tool:
        return verb != "create_chat_completion" or bool(_words(receiver) & (_MODEL_NAMES | _ENGINE_NAMES))
    return verb in {"chat", "generate"} and "ollama" in receiver.lower() and "." not in receiver.lower().rpartition("ollama")[2]


def _is_named_call(module: Module, site: Site, receiver: str, verb: str) -> bool:
    """Return whether the receiver is called a model and the verb is one of models."""
    words = _words(receiver)
    if not receiver or site.name == "self.llm":
        return _is_called_itself(module, site)
    if isinstance(site.node.func, ast.Attribute) and isinstance(site.node.func.value, ast.Subscript):
        words |= {word.removesuffix("s") for word in words}  # chains["summary"].invoke(text)
    if words & NOT_MODELS:
        return False
    packages = module.packages
    if verb == "predict" and words & _MODEL_NAMES == {"model"} and packages & _CLASSIFYING:
        return False
    if verb in CHAIN_VERBS and words & _MODEL_NAMES:
        return bool(packages & FRAMEWORKS_OF_CHAINS) or verb == "invoke" or (verb == "stream" and "chain" in words)
    if verb in AGENT_VERBS and words & {"agent", "crew", "team"} and packages & AGENT_PACKAGES:
        return True
    if verb in INDEX_VERBS and ({"query", "engine"} <= words or {"chat", "engine"} <= words or "as_query_engine" in receiver):
        return True
    if verb in {"send_message", "send_message_async"} and packages & {"google", "vertexai"}:
        return bool(words & {"chat", "session", "model"})
    if verb in INDEX_VERBS and "llama_index" in packages and ("llm" in words or ("index" in words and verb == "query")):
        return True
    if verb == "chat" and "model" in words and site.node.args and "tokenizer" in last_name(site.node.args[0]):
        return True  # as models of transformers have it: model.chat(tokenizer, ...)
    if verb == "run_async" and "runner" in words and "google" in packages:
        return True
    if verb == "retrieve" and receiver.endswith("threads.runs"):
        return any(isinstance(frame.node, ast.While) for frame in site.frame.outward())  # it waits for an assistant
    if verb not in ENGINE_VERBS:
        return False
    return bool(words & _ENGINE_NAMES) or (bool(packages & LOCAL_ENGINES) and site.keyword(*GENERATION_KEYWORDS) is not None)


def _is_called_itself(module: Module, site: Site) -> bool:
    """Return whether `qa_chain({...})`, `llm(prompt)` or `self.llm(prompt)` calls a chain or a model, or a function for it."""
    name = site.name
    if ("." in name and name != "self.llm") or name[:1].isupper():
        return False  # a method, or a class: ChainResponse(text)
    words = _words(name)
    if asks_model(name) and (site.node.args or site.node.keywords) and _is_parameter(site, name):
        return True
    if not module.packages & (FRAMEWORKS_OF_CHAINS | LOCAL_ENGINES) or len(words) > 2 or name in module.imports:
        return False
    return "chain" in words or (words == {"llm"} and all(function.name != "llm" for function in module.functions))


def asks_model(name: str) -> bool:
    """Return whether a function with this name asks a model, if nothing else is known of it: call_llm, llm_generate, llm."""
    words = _words(name)
    return "llm" in words and words <= _ASKING | {"llm"}


def _is_parameter(site: Site, name: str) -> bool:
    """Return whether the function, or one around it, is given what has this name."""
    return any(parameter.arg == name for function in site.function.around() for parameter in function.parameters)


def maker_of(module: Module, site: Site) -> str:
    """Return the call that made the receiver, if this file shows it: langchain_openai.ChatOpenAI for llm.invoke."""
    node: ast.expr = site.node.func
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Call):
            return made_by(module, node)
        for value in module.values_of(node, site.function):
            if made := made_by(module, value.body if isinstance(value, ast.IfExp) else value):
                return made
    for value in module.values_of(site.node.func, site.function) if _is_called(site) else ():
        if (made := made_by(module, value)) in _CALLED:
            return made
    return ""


def made_by(module: Module, value: ast.expr) -> str:
    """Return the name of the call in `x = Call(...)`; `chain` for LangChain's `prompt | model`, `graph` for compile()."""
    if isinstance(value, ast.Await):
        value = value.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr) and module.packages & FRAMEWORKS_OF_CHAINS:
        return "hangup.chain"
    if not isinstance(value, ast.Call):
        return ""
    name = module.dotted(value.func)
    last = name.rpartition(".")[2]
    while last in _MOVES:  # from_pretrained(...).eval().to(device)
        name = name.rpartition(".")[0]
        last = name.rpartition(".")[2]
    if last == "compile" and module.packages & {"langgraph"}:
        return "hangup.chain"
    if last in {"with_structured_output", "bind_tools", "with_retry", "with_config"}:
        return "hangup.chain"
    if name in BLOCKING_AGENTS:
        return name
    if name == "haystack.Pipeline":
        return "hangup.pipeline" if any(".generators." in used for used in module.imports.values()) else ""
    if last == "Agent" and module.packages & AGENT_PACKAGES:
        return "hangup.agent"
    if name in CLIENTS:
        return name
    if name == _PIPELINE and _OTHER_TASKS.search(_task(value)):
        return ""
    known = last in ASYNC_CLIENTS or last in SYNC_CLIENTS or last in CHAINS or last in LOCAL_MODELS or name == _PIPELINE
    return name if known and "Tokenizer" not in name and "Processor" not in name else ""


def _task(value: ast.Call) -> str:
    """Return the task of `pipeline("text-generation", ...)`; "" if it is not written there."""
    given = value.args[0] if value.args else next((k.value for k in value.keywords if k.arg == "task"), None)
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""


def is_made_call(made: str, verb: str) -> bool:
    """Return whether calling `verb` on what `made` returns is inference."""
    last = made.rpartition(".")[2]
    if made in CLIENTS:
        return verb in CLIENTS[made]
    if last in CHAINS or made == "hangup.chain":
        return verb in CHAIN_VERBS or verb in OWN_VERBS or verb in {"__call__", "call"}
    if made in {"hangup.agent", "hangup.pipeline"} or (last == "Agent" and made.partition(".")[0] in AGENT_PACKAGES):
        return verb in AGENT_VERBS or verb in OWN_VERBS
    if last in LOCAL_MODELS:
        return verb in ENGINE_VERBS or verb in {"create_chat_completion", "create_completion", "chat"}
    return False


def streams(module: Module, site: Site, verb: str) -> int:
    """Return whether an inference call asks for a stream: 1, 0, or UNKNOWN if the call does not show it."""
    if (verb in STREAM_VERBS or verb.endswith(sdks.STREAMING)) and not (verb == "stream" and site.keyword("json") is not None):
        return 1
    if site.name in _FUNCTIONS and verb == "query":
        return 1
    given = site.keyword("stream")
    if isinstance(given, ast.Constant):
        return int(bool(given.value))
    if given is not None:
        return UNKNOWN
    for body in bodies(module, site):
        if isinstance(body, ast.Dict):
            values = {k.value: v for k, v in zip(body.keys, body.values, strict=True) if isinstance(k, ast.Constant)}
            flag = values.get("stream")
            if flag is not None:
                return int(bool(flag.value)) if isinstance(flag, ast.Constant) else UNKNOWN
            return 1 if verb == "stream" else UNKNOWN if None in body.keys else 0
    if site.keyword("streamer") is not None or verb == "stream":
        return 1
    return UNKNOWN if site.has_double_star and not verb.startswith(("generate", "ainvoke", "invoke")) else 0


def uncapped(site: Site) -> bool:
    """Return whether a call could limit its tokens and does not."""
    if not (site.name.endswith(_CAPPED_TAILS) or site.name in _CAPPED_FUNCTIONS):
        return False
    if site.has_double_star or len(site.node.args) > 2 or site.keyword(*_LIMITS) is not None:
        return False
    return site.keyword("messages", "prompt", "input") is not None


def is_brief(site: Site) -> bool:
    """Return whether a call limits its answer to so few tokens that it is a label, or over before anybody has left."""
    given = site.keyword("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
    return isinstance(given, ast.Constant) and isinstance(given.value, int) and 0 < given.value <= BRIEF_TOKENS_MAX
