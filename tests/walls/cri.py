"""What a kubelet asks of containerd, as far as the check of it needs that: images, pods, containers with devices of the Container Device Interface.

    cri.py image ROOT FILE TAG                 an archive of an image with the files of a folder, whose command sleeps
    cri.py run SOCKET TAG DEVICE USER NAME CMD...   a pod with one container; its output, and its exit code as this program's
    cri.py start SOCKET TAG DEVICE USER NAME CMD... the same, which goes on; its pod's and its own number
    cri.py kill SOCKET POD CONTAINER           ends both

Messages of the Container Runtime Interface are written here field by field, since crictl is in no package of Debian's. The numbers are those of
runtime/v1/api.proto.
"""

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import time

NODE = 2
EXITED = 2
WITHIN_S = 60


def number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(at, value):
    """A field of a message: a number, a text, a message, or several of them."""
    if isinstance(value, list):
        return b"".join(field(at, each) for each in value)
    if isinstance(value, int):
        return number(at << 3) + number(value)
    data = value.encode() if isinstance(value, str) else value
    return number(at << 3 | 2) + number(len(data)) + data


def message(**fields):
    """A message of fields that are called f1, f2 and so on."""
    return b"".join(field(int(name[1:]), value) for name, value in fields.items())


def parse(data):
    """The fields of a message: numbers and bytes by their number, the last of each."""
    fields, at = {}, 0

    def take():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = take()
        if key & 7 == 0:
            fields[key >> 3] = take()
        elif key & 7 == 2:
            size = take()
            fields[key >> 3] = data[at : at + size]
            at += size
        else:
            raise ValueError(f"a field of kind {key & 7}")
    return fields


class Runtime:
    def __init__(self, socket):
        import grpc

        self.channel = grpc.insecure_channel("unix://" + socket)

    def ask(self, method, **fields):
        call = self.channel.unary_unary("/runtime.v1.RuntimeService/" + method)
        return parse(call(message(**fields), timeout=WITHIN_S, wait_for_ready=True))


def start(runtime, logs, tag, device, user, name, command):
    pod_config = message(
        f1=message(f1=name, f2=name, f3="default"),
        f3=logs,
        f8=message(f2=message(f1=message(f1=NODE))),
    )
    pod = runtime.ask("RunPodSandbox", f1=pod_config)[1].decode()
    security = message(f5=message(f1=int(user)))
    config = message(
        f1=message(f1=name),
        f2=message(f1=tag),
        f3=command,
        f11="log",
        f15=message(f2=security),
        f17=message(f1=device),
    )
    try:
        made = runtime.ask("CreateContainer", f1=pod, f2=config, f3=pod_config)
        container = made[1].decode()
        runtime.ask("StartContainer", f1=container)
    except Exception:
        end(runtime, pod)
        raise
    return pod, container


def end(runtime, pod, container=None):
    if container:
        runtime.ask("StopContainer", f1=container)
    runtime.ask("StopPodSandbox", f1=pod)
    runtime.ask("RemovePodSandbox", f1=pod)


def run(runtime, *what):
    with tempfile.TemporaryDirectory() as logs:
        pod, container = start(runtime, logs, *what)
        try:
            until = time.monotonic() + WITHIN_S
            while True:
                status = parse(runtime.ask("ContainerStatus", f1=container)[1])
                if status.get(3, 0) == EXITED:
                    break
                if time.monotonic() > until:
                    sys.exit("the container does not end")
                time.sleep(0.02)
            # Lines of a time, a stream, whether the line is whole, and the text.
            with open(os.path.join(logs, "log")) as log:
                for line in log:
                    print(line.split(" ", 3)[3], end="")
        finally:
            end(runtime, pod)
    return status.get(7, 0)


def image(root, file, tag):
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(root, arcname=".")
    layer = layer.getvalue()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "100000"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(file, mode="w") as archive:
        for name, data in [
            ("layer.tar", layer),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ]:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def main():
    what, *words = sys.argv[1:]
    if what == "image":
        return image(*words)
    runtime = Runtime(words[0])
    if what == "kill":
        return end(runtime, *words[1:])
    _, tag, device, user, name, *command = words
    if what == "run":
        return run(runtime, tag, device, user, name, command)
    logs = tempfile.mkdtemp()
    print(*start(runtime, logs, tag, device, user, name, command))


sys.exit(main())
