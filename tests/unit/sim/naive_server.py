"""The engine model's rules once more, one step and one block at a time: the oracle of test_engine.py.

Slow and obvious on purpose: a dict entry a block, a loop a step, no closed forms, no runs.
"""

from collections import OrderedDict

from picker.sim.profiles import Profile

BLOCK = 16


class NaiveCache:
    """Every cached block is an entry: id -> holders; idle ones stand in release order."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.private = 0
        self.holders: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        return self.total - self.private - (len(self.holders) - len(self.idle))

    def matched(self, ids, limit):
        count = 0
        while count < limit and ids[count] in self.holders:
            count += 1
        return count

    def take(self, count):
        self.private += count
        while self.private + len(self.holders) > self.total:
            block, _ = self.idle.popitem(last=False)
            del self.holders[block]

    def hold(self, block):
        self.holders[block] = self.holders.get(block, 0) + 1
        self.idle.pop(block, None)

    def release(self, blocks):
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.idle[block] = None


class NaiveSequence:
    def __init__(self, name, prompt, output, ids):
        self.name, self.prompt, self.output, self.ids = name, prompt, output, ids
        self.target = prompt
        self.generated = self.computed = self.blocks = 0
        self.tree: list[int] = []
        self.cached = None


class NaiveServer:
    """Runs a whole list of (at, name, prompt tokens, output tokens, ids) and returns its events."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.cache = NaiveCache(profile.blocks)
        self.waiting: list[NaiveSequence] = []
        self.running: list[NaiveSequence] = []
        self.hits = self.queries = self.preemptions = 0

    def commit(self, one):
        full = min(one.computed // BLOCK, len(one.ids))
        for block in one.ids[len(one.tree) : full]:
            self.cache.private -= 1
            self.cache.hold(block)
            one.tree.append(block)

    def leave(self, one):
        self.commit(one)
        self.cache.release(one.tree)
        self.cache.private -= one.blocks - len(one.tree)
        one.tree, one.blocks = [], 0
        self.running.remove(one)

    def run(self, arrivals, aborts=()):
        arrivals, aborts = sorted(arrivals, key=lambda a: a[0]), sorted(aborts)
        events, now, gone = [], 0.0, set()
        while True:
            while arrivals and arrivals[0][0] <= now:
                self.waiting.append(NaiveSequence(*arrivals.pop(0)[1:]))
            while aborts and aborts[0][0] <= now:
                name = aborts.pop(0)[1]
                gone.add(name)
                for one in [o for o in self.waiting if o.name == name]:
                    self.waiting.remove(one)
                for one in [o for o in self.running if o.name == name]:
                    self.leave(one)
            if not self.waiting and not self.running:
                if not arrivals:
                    return events
                now = arrivals[0][0]
                continue
            now = self.step(now, events, gone, aborts)

    def step(self, now, events, gone, aborts):
        decoding = [o for o in self.running if o.computed >= o.target]
        preempted = False
        while sum(o.computed % BLOCK == 0 for o in decoding) > self.cache.free:
            victim = self.running[-1]
            if victim in decoding:
                decoding.remove(victim)
            self.leave(victim)
            victim.target, victim.computed = victim.prompt + victim.generated, 0
            self.waiting.insert(0, victim)
            self.preemptions += 1
            preempted = True
            events.append((now, "preempted", victim.name))
        for one in decoding:
            if one.computed % BLOCK == 0:
                self.cache.take(1)
                one.blocks += 1
        budget = self.profile.batch_tokens_max - len(decoding)
        chunks, pairs = [], 0.0
        for one in self.running:
            if one.computed < one.target:
                chunks.append((one, min(one.target - one.computed, budget)))
        budget -= sum(tokens for _, tokens in chunks)
        self.scheduled(chunks)
        while self.waiting and budget > 0 and not preempted and len(self.running) < self.profile.sequences_max:
            one = self.waiting[0]
            hit = self.cache.matched(one.ids, min((one.target - 1) // BLOCK, len(one.ids)))
            idle = sum(block in self.cache.idle for block in one.ids[:hit])
            need = -(-one.target // BLOCK)
            if need - hit + idle > self.cache.free:
                break
            self.waiting.pop(0)
            for block in one.ids[:hit]:
                self.cache.hold(block)
            one.tree = list(one.ids[:hit])
            self.cache.take(need - hit)
            one.blocks, one.computed = need, hit * BLOCK
            if one.cached is None:
                one.cached = one.computed
                self.queries += one.target
                self.hits += one.computed
            self.running.append(one)
            chunk = (one, min(one.target - one.computed, budget))
            self.scheduled([chunk])
            chunks.append(chunk)
            budget -= chunk[1]
        pairs = sum(tokens * (one.computed + tokens / 2) for one, tokens in chunks)
        context = sum(o.computed for o in decoding)
        now += self.profile.duration(
            prefill_tokens=sum(tokens for _, tokens in chunks),
            token_pairs=pairs,
            sequences=len(decoding),
            context_tokens=context,
        )
        aborted = gone | {name for at, name in aborts if at < now}
        for one, tokens in chunks:
            one.computed += tokens
            if one.computed == one.target:
                if not one.generated and one.name not in aborted:
                    events.append((now, "first_token", one.name))
                one.generated += 1
        for one in decoding:
            one.computed += 1
            one.generated += 1
        for one in [o for o in self.running if o.generated == o.output]:
            self.leave(one)
            if one.name not in aborted:
                events.append((now, "finished", one.name))
        return now

    def scheduled(self, chunks):
        """Full blocks are cached when they are scheduled."""
        for one, tokens in chunks:
            before = one.computed
            one.computed += tokens
            self.commit(one)
            one.computed = before
