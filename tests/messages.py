#!/usr/bin/env python3
"""Every message of every version, written by our codec, read and written again by Apache Kafka's own classes: the same bytes, and the
same defaults. The one judge of the messages that no other codec knows: records of the internal topics, the newest versions.
"""

import os

from harness import cache

out = cache.target_dir() / "messages.txt"
out.parent.mkdir(parents=True, exist_ok=True)
out.unlink(missing_ok=True)
cache.run(["cargo", "run", "--quiet", "--example", "judged_messages", "--", out], cwd=cache.ROOT)
os.execvp(cache.java(), [*cache.java_classes(cache.TESTS / "judge" / "Messages.java"), str(out)])
