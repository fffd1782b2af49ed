"""Worker process of the baseline in turn.py. It answers each entry of one stream with an entry in another."""

from __future__ import annotations

import sys

from bench._common import RawLink


def main(url: str, turns: int) -> None:
    link = RawLink(url)
    link.call("RPUSH", "bare:ready", "1")
    last = "0"
    for _ in range(turns):
        reply = link.call("XREAD", "BLOCK", 5000, "COUNT", 1, "STREAMS", "bare:in", last)
        last = reply[0][1][-1][0].decode()
        link.call("XADD", "bare:out", "*", "m", "y" * 100)
    link.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
