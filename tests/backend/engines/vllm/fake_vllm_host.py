"""Speaks as `vllm_host.py` does, without vLLM: `python fake_vllm_host.py FOLDER FD`.

Answers a sample with its prompt's first token, repeated. Tokens above 900 are orders: 901 dies, 902 dies in
its first life only, 903 says nothing any more in that one, 904 is not answered in it, 905 is answered there
with what cannot be read, and after 906 that one only takes and drops policies. FOLDER holds what was heard,
a file per life; the file `broken` beside it names the lives that do not start. While there is a file
`reading` beside it, no policy is let go of.
"""

import json
import os
import socket
import sys
from pathlib import Path

folder = Path(sys.argv[1])
life = len(list(folder.iterdir()))
heard = (folder / str(life)).open("w")
_socket = socket.socket(fileno=int(sys.argv[2]))
hearing, saying = _socket.makefile("r"), _socket.makefile("w")


def say(message):
    saying.write(json.dumps(message) + "\n")
    saying.flush()


def sample(request):
    order = request["prompt"][0]
    if order == 901 or (order == 902 and life == 0):
        os._exit(1)
    if order == 903 and life == 0:
        sys.stdin.close()
        while True:
            hearing.readline()
    count = request["max_tokens"]
    return {"tokens": [order] * count, "logprobs": [-1.0] * count, "reason": "length"}


dropped, mute = [], False
for line in hearing:
    heard.write(line)
    heard.flush()
    message = json.loads(line)
    kind = message.get("do")
    if kind is None:
        broken = folder.parent / "broken"
        if broken.exists() and str(life) in broken.read_text().split():
            sys.exit("ValueError: the model is made of cheese")
        say({"ready": True})
    elif mute and kind not in {"load", "drop"}:
        pass
    elif kind == "sample" and message["prompt"][0] == 906 and life == 0:
        mute = True
    elif kind == "sample" and message["prompt"][0] == 904 and life == 0:
        pass
    elif kind == "sample" and message["prompt"][0] == 905 and life == 0:
        say({"id": message["id"], "tokens": "?"})
    elif kind == "sample":
        say({"id": message["id"], **sample(message)})
    elif kind == "together" and message["requests"][0]["prompt"][0] == 904 and life == 0:
        pass
    elif kind == "together" and message["requests"][0]["prompt"][0] == 905:
        say({"id": message["id"], "answers": [{"tokens": "?"} for _ in message["requests"]]})
    elif kind == "together":
        say({"id": message["id"], "answers": [sample(request) for request in message["requests"]]})
    elif kind == "load":
        say({"id": message["id"], "sha256": "0" * 64})
    elif kind == "drop":
        dropped.append(message["policy"])
    elif kind in {"canary", "sleep", "wake"}:
        say({"id": message["id"], "alive": True})
    while dropped and not (folder.parent / "reading").exists():
        say({"dropped": dropped.pop(0)})
