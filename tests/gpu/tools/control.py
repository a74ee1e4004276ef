"""The daemon's control API over its socket, on one connection: fast enough to poll each millisecond."""
import http.client
import json
import os
import socket


class Control(http.client.HTTPConnection):
    def __init__(self, path=None):
        super().__init__("mica")
        self.path = path or os.path.join(os.environ["MICA_RUNTIME_DIR"], "control.sock")

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)

    def get(self, path):
        self.request("GET", path)
        answer = self.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        return json.loads(body)

    def vgpu(self, name):
        return self.get(f"/v1/vgpus/{name}")
