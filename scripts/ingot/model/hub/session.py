"""The HTTP session of huggingface_hub with bounds that it lacks.

Its answers but for files are read whole, and asked for again when they break: here they have a limit.
The token goes to the hub's own host, whatever host a `Link:` or a redirect names.
"""

from urllib.parse import urlsplit

from ingot.model.hub.client import BrokenTransferError

ANSWER = 64 << 20  # bytes of a list of files: 100,000 take 25 MB
ERROR = 64 << 10  # bytes of what an error says
UNASKED = "/api/agent-harnesses"  # the library would ask for it once a day, to tell who calls


def install() -> None:
    """Let all requests of huggingface_hub in this process go through a bounded session."""
    import httpx2
    from huggingface_hub import constants, errors, set_client_factory

    def within(parts, limit: int):
        size = 0
        for part in parts:
            size += len(part)
            if size > limit:
                raise BrokenTransferError(f"an answer of more than {limit >> 10} kB")
            yield part

    class Limited(httpx2.SyncByteStream):
        def __init__(self, stream, limit: int):
            self.stream, self.limit = stream, limit

        def __iter__(self):
            return within(self.stream, self.limit)

        def close(self) -> None:
            self.stream.close()

    class Transport(httpx2.HTTPTransport):
        def handle_request(self, request):
            if constants.is_offline_mode():
                raise errors.OfflineModeIsEnabled(f"{request.url}: HF_HUB_OFFLINE is set")
            if request.url.path == UNASKED:
                raise httpx2.ConnectError("not asked for", request=request)
            try:
                answer = super().handle_request(request)
            except httpx2.TransportError as error:  # the library would try again, and we around it
                said = str(error) or type(error).__name__
                raise BrokenTransferError(f"{request.url.netloc.decode()}: {said}") from None
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                answer.close()
                raise BrokenTransferError("an answer that is compressed, which was not asked for")
            if answer.status_code >= 400:
                answer.stream = Limited(answer.stream, ERROR)
            elif request.url.path.startswith("/api/"):
                answer.stream = Limited(answer.stream, ANSWER)
            return answer

    def ours(request) -> None:
        request.headers["Accept-Encoding"] = "identity"
        if urlsplit(str(request.url))[:2] != urlsplit(constants.ENDPOINT)[:2]:  # scheme and host
            request.headers.pop("Authorization", None)

    set_client_factory(
        lambda: httpx2.Client(
            transport=Transport(),
            event_hooks={"request": [ours]},
            follow_redirects=True,
            timeout=30,
        )
    )
