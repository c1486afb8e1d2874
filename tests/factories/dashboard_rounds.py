"""Rounds as a front tells its dashboard of them, made up."""


class Rounds:
    """A round with a late member and a replica that was not asked; the next one does not begin."""

    def status(self):
        def member(name, **changes):
            return {
                "member": name,
                "outcome": "reported",
                "reason": None,
                "report": {"num_tokens": 8192, "loss_before": 1.25, "loss_after": 0.75},
                "used_in": 1,
                **changes,
            }

        late = {"outcome": "late", "reason": "had not finished", "report": None, "used_in": None}
        row = {
            "round": 1,
            "status": "done",
            "reason": None,
            "base_version": None,
            "candidate": "clinc@3",
            "started_at_s": 1_700_000_000.0,
            "ended_at_s": 1_700_000_030.0,
            "results": {
                "planning": {"left_out": {"r2": "it serves another base model"}},
                "gate": {"increase": -0.125, "num_samples": 256},
            },
            "members": [member("r0"), member("r1", **late)],
        }
        pause = "a round needs 2 replicas of one base model; 1 answer"
        return {"clinc": {"active": "clinc@3", "pause": pause, "rounds": [row]}}

    def refusals(self, adapter, limit):
        return ()

    async def promote(self, version):
        raise AssertionError("not asked for here")

    async def roll_back(self, adapter):
        raise AssertionError("not asked for here")
