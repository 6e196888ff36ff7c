"""The endpoint to probe: its URL, where it is, and whose it is."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from hangup.errors import ConfigError


class ProbeError(ConfigError):
    """The probe cannot start; the one line says why and what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__([problem])


@dataclass(frozen=True, slots=True)
class HostedProvider:
    """A company that bills for each token."""

    title: str
    hosts: tuple[str, ...]  # suffixes of its host names
    close_stops_billing: str  # what is known: yes, no or unknown


# What providers and OpenRouter say about closed streams; docs/probe.md has the sources.
PROVIDERS = (
    HostedProvider("OpenAI", (".openai.com",), "unknown"),
    HostedProvider("Azure OpenAI", (".openai.azure.com", ".services.ai.azure.com"), "unknown"),
    HostedProvider("Anthropic", (".anthropic.com",), "unknown"),
    HostedProvider("Google", (".googleapis.com",), "no"),
    HostedProvider("AWS Bedrock", (".amazonaws.com",), "no"),
    HostedProvider("OpenRouter", ("openrouter.ai",), "depends on the provider behind it"),
    HostedProvider("Novita", (".novita.ai",), "yes"),
    HostedProvider("Vercel AI Gateway", (".vercel.sh",), "no"),
    HostedProvider("Groq", (".groq.com",), "unknown"),
    HostedProvider("Mistral", (".mistral.ai",), "unknown"),
    HostedProvider("Together", (".together.xyz", ".together.ai"), "unknown"),
    HostedProvider("Fireworks", (".fireworks.ai",), "unknown"),
    HostedProvider("DeepInfra", (".deepinfra.com",), "unknown"),
    HostedProvider("DeepSeek", (".deepseek.com",), "unknown"),
    HostedProvider("xAI", (".x.ai",), "unknown"),
    HostedProvider("Cohere", (".cohere.com", ".cohere.ai"), "unknown"),
    HostedProvider("Perplexity", (".perplexity.ai",), "unknown"),
    HostedProvider("Hugging Face", (".huggingface.co", ".endpoints.huggingface.cloud"), "unknown"),
    HostedProvider("Replicate", (".replicate.com",), "unknown"),
)
ASSUMED_PRICE = 15.0  # per million output tokens, where nobody gave a price: on the high side of what providers list


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    tls: bool
    base: str  # the part of the path before /v1/…, without a slash at the end; usually empty

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"

    @property
    def authority(self) -> str:
        """The host as the Host header and URLs have it; the port only if it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def provider(self) -> HostedProvider | None:
        """The company that serves this host, if it is a known one."""
        name = "." + self.host.lower().rstrip(".")
        for provider in PROVIDERS:
            if any(name.endswith("." + suffix.lstrip(".")) for suffix in provider.hosts):
                return provider
        return None


def parse(url: str) -> Endpoint:
    """Parse an endpoint's URL; what follows the base (`/v1`, `/v1/chat/completions`) may be given or not."""
    parts = _split(url)
    path = parts.path.rstrip("/")
    for end in ("/chat/completions", "/completions", "/messages", "/responses"):
        path = path.removesuffix(end)
    return _endpoint(url, parts, path.removesuffix("/v1"))


def parse_page(url: str) -> tuple[Endpoint, str]:
    """Parse the URL of an engine, or of one page of it; return the engine and the page's path ("" if only the engine)."""
    parts = _split(url)
    page = parts.path if parts.path not in ("", "/") else ""
    return _endpoint(url, parts, ""), page


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port
    except ValueError as error:
        raise ProbeError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ProbeError(f"{url!r}: expected http:// or https://, not {parts.scheme}://")
    if not parts.hostname:
        raise ProbeError(f"{url!r} has no host; expected for example http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise ProbeError("the URL holds a password; give the key in an environment variable: --api-key-env NAME")
    if not url.isprintable() or " " in url:
        raise ProbeError(f"{url!r} is not a URL: it has spaces or control characters")
    return parts


def _endpoint(url: str, parts: SplitResult, base: str) -> Endpoint:
    tls = parts.scheme == "https"
    port = parts.port if parts.port is not None else 443 if tls else 80
    if not port:
        raise ProbeError(f"{url!r}: there is no port 0")
    return Endpoint(parts.hostname or "", port, tls, base)


def is_near(address: str) -> bool:
    """Return whether an IP address is on this machine or a private network."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = mapped if mapped is not None else ip
    return ip.is_loopback or ip.is_private or ip.is_link_local
