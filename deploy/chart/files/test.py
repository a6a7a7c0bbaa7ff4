"""Run by `helm test` in the picker's image: asks each address until it answers, a minute at most."""

import sys
import time
import urllib.error
import urllib.request

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
deadline = time.monotonic() + 60
for url in sys.argv[1:]:
    while True:
        try:
            with direct.open(url, timeout=5) as answer:
                said = f"{answer.status}"
            break
        except urllib.error.HTTPError as error:
            reason = error.headers.get("x-picker-reason") or ""
            said = f"{error.code} {reason} {error.read(300).decode(errors='replace')}"
        except OSError as error:
            said = str(error)
        if time.monotonic() > deadline:
            sys.exit(f"FAILED {url}: {said}")
        time.sleep(1)
    print(f"good {url}: {said}", flush=True)
