"""HTTP requests that go where they are sent and nowhere else."""

from __future__ import annotations

import urllib.request
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow no redirect: urllib would send the headers along, and with them a token or a key, to any host."""


open_url = urllib.request.build_opener(_NoRedirects).open  # a redirect raises HTTPError, as other statuses do
