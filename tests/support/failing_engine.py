"""`FAILING_ENGINE`: an engine that is ready and fails every request, as a program for a container."""

FAILING_ENGINE = """
import http.server

class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        models = b'{"object": "list", "data": [{"id": "tiny-recall", "object": "model"}]}'
        self.reply(200, models if self.path == "/v1/models" else b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.reply(500, b'{"error": {"message": "no kernel image for this GPU", "type": "server_error"}}')

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Engine).serve_forever()
"""
