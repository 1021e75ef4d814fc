"""What a command has written, as far as it is kept."""


class Output:
    """Keeps the first and the last half of the limit, counts the rest."""

    def __init__(self, limit):
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.head_limit = limit // 2
        self.tail_limit = limit - self.head_limit

    def add(self, chunk):
        self.total += len(chunk)
        room = self.head_limit - len(self.head)
        self.head += chunk[:room] if room > 0 else b""
        self.tail += chunk[room:] if room > 0 else chunk
        if len(self.tail) > 4 * self.tail_limit:
            del self.tail[: -self.tail_limit]

    def text(self):
        """(text, truncated); bytes that are no UTF-8 become U+FFFD, and no character is cut in two."""
        left_out = self.total - len(self.head) - min(len(self.tail), self.tail_limit)
        if left_out <= 0:
            return bytes(self.head + self.tail).decode("utf-8", "replace"), False
        head, tail = bytes(self.head), bytes(self.tail[-self.tail_limit :])
        while tail and tail[0] & 0xC0 == 0x80 and left_out < self.total:
            tail, left_out = tail[1:], left_out + 1
        for back in range(1, min(4, len(head)) + 1):
            if head[-back] >= 0xC0:  # a lead byte: is its character complete?
                needed = 2 if head[-back] < 0xE0 else 3 if head[-back] < 0xF0 else 4
                if needed > back:
                    head, left_out = head[:-back], left_out + back
                break
            if head[-back] < 0x80:
                break
        mark = f"\n[... {left_out} bytes of output left out ...]\n"
        return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace"), True
