"""The results that GoogleTest programs wrote into files, several ranks' files taken together."""

import collections
import xml.etree.ElementTree as xml

# How many ranks passed, failed and skipped one test, and the text of a failure.
Outcome = collections.namedtuple("Outcome", "passed failed skipped text")


def read(paths):
    """Outcomes by test, and the paths of unreadable files: the programs of these files did not get to the end."""
    outcomes, missing = {}, []
    for path in paths:
        try:
            cases = list(xml.parse(path).iter("testcase"))
        except (OSError, xml.ParseError):
            missing.append(path)
            continue
        for case in cases:
            if case.get("status") != "run":
                continue
            name = f"{case.get('classname')}.{case.get('name')}"
            before = outcomes.get(name, Outcome(0, 0, 0, ""))
            failure, skipped = case.find("failure"), case.get("result") == "skipped"
            text = before.text or (failure.get("message") or "" if failure is not None else "")
            good = failure is None and not skipped
            outcomes[name] = Outcome(before.passed + good, before.failed + (failure is not None),
                                     before.skipped + skipped, text)
    return outcomes, missing


def count(outcomes):
    """How many tests passed on all ranks without a skip, failed on any, were skipped on any and failed on none."""
    failed = sum(1 for outcome in outcomes.values() if outcome.failed)
    skipped = sum(1 for outcome in outcomes.values() if outcome.skipped and not outcome.failed)
    return len(outcomes) - failed - skipped, failed, skipped
