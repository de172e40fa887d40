"""What strangers may write to the web server: every request is answered, none is an exception."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rgpu.web import Board
from rgpu.web.routes import Request, answer

TOKEN = "a-token-of-24-characters"
LINES = st.text(st.characters(max_codepoint=255), max_size=80)
KNOWN = st.sampled_from(["/", "/v1/gpus", "/metrics", "/healthz", "/v1/events", "/app.js", "//", "/../"])
PATHS = st.one_of(LINES, KNOWN)
METHODS, TOKENS = st.sampled_from(["GET", "HEAD", "POST", ""]), st.sampled_from(["", TOKEN])
HEADERS = st.tuples(st.sampled_from(["Host", "Cookie", "Authorization", "X", "", " a", "Content-Length"]), LINES)


def parsed(head):
    try:
        return Request.parse(head)
    except ValueError:
        return None


@given(st.binary(max_size=300))
@example(b"GET http://[ HTTP/1.1\r\n\r\n")
@example(b"GET //[ HTTP/1.1\r\n\r\n")
def test_any_bytes(head):
    parsed(head)


@settings(max_examples=60)
@given(METHODS, PATHS, LINES, st.lists(HEADERS, max_size=4), TOKENS)
def test_anything_like_a_request(method, path, query, headers, token):
    lines = [f"{method} {path}?{query} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    request = parsed("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if request is None:
        return
    board = Board("0")
    board.publish([])
    response = answer(request, board, token)
    assert response.status in (200, 302, 401, 404, 405)
    if token and response.status == 200:
        assert request.path == "/healthz" or TOKEN in str(request)
    for name, value in response.headers.items():
        assert "\n" not in name + value and "\r" not in name + value
