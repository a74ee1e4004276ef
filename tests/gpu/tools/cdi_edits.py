"""What a container engine does to a container that gets a CDI device, as lines for a shell: cdi_edits.py FILE DEVICE

env NAME=VALUE | node PATH | mount HOST CONTAINER, in the order of the file: the edits for every device, then those of this one."""
import json
import sys

# What `mica cdi generate` may write; anything else would be left out here and not by an engine.
KNOWN = {"env", "deviceNodes", "mounts"}


def lines(document, name):
    device = next((device for device in document["devices"] if device["name"] == name), None)
    if device is None:
        raise SystemExit(f"no device {name}: there are {[device['name'] for device in document['devices']]}")
    for edits in (document["containerEdits"], device["containerEdits"]):
        unknown = set(edits) - KNOWN
        if unknown:
            raise SystemExit(f"edits that this tool does not know: {sorted(unknown)}")
        yield from (f"env {variable}" for variable in edits.get("env", []))
        yield from (f"node {node['path']}" for node in edits.get("deviceNodes", []))
        yield from (f"mount {mount['hostPath']} {mount['containerPath']}" for mount in edits.get("mounts", []))


def main(file, name):
    with open(file) as text:
        print("\n".join(lines(json.load(text), name)))


if __name__ == "__main__":
    main(*sys.argv[1:])
