"""The samples of bench/compare.py as quantiles, ratios and a table of text. Pure functions over cells.

A cell is a dict: ranks, operation, size (as asked for), bytes (as moved), by, n, p50_us, p99_us, rounds_us (the median
of each round).
"""

import statistics

OURS = ("heap", "ordinary")
YARDSTICK = "memcpy"


def quantile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))]


def cells_of(rounds):
    """Cells from the results of all rounds: pairs of the peer's name and what the loop wrote."""
    samples = {}
    for by, result in rounds:
        for cell in result["cells"]:
            key = (result["ranks"], cell["operation"], cell["size"], cell["bytes"], by)
            samples.setdefault(key, []).append(cell["us"])
    return [{"ranks": key[0], "operation": key[1], "size": key[2], "bytes": key[3], "by": key[4],
             "n": sum(map(len, lists)), "p50_us": statistics.median(sum(lists, [])),
             "p99_us": quantile(sum(lists, []), 0.99), "rounds_us": [statistics.median(each) for each in lists]}
            for key, lists in samples.items()]


def rows_of(cells):
    """(ranks, operation) -> {size: {by: cell}}, without the yardstick."""
    found = {}
    for cell in cells:
        if cell["operation"] != YARDSTICK:
            row = found.setdefault((cell["ranks"], cell["operation"]), {}).setdefault(cell["size"], {})
            row[cell["by"]] = cell
    return found


def memcpy_of(cells):
    """(ranks, bytes) -> p50 of a memcpy of as many bytes by each rank, all at once."""
    return {(cell["ranks"], cell["bytes"]): cell["p50_us"] for cell in cells if cell["operation"] == YARDSTICK}


def best_peer(row):
    """The fastest cell of a row that is not ours, or None."""
    peers = [cell for by, cell in row.items() if by not in OURS]
    return min(peers, key=lambda cell: cell["p50_us"], default=None)


def ratios(row, memcpy):
    """by -> (time over the best peer's, time over memcpy's) of our ways; None where the other is missing."""
    best = best_peer(row)
    found = {}
    for by in OURS:
        if by in row:
            mine = row[by]["p50_us"]
            copied = memcpy.get((row[by]["ranks"], row[by]["bytes"]))
            found[by] = (mine / best["p50_us"] if best else None, mine / copied if copied else None)
    return found


def size_words(size):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def number(value, digits=2):
    """Three digits or so: 0.52, 13.1, 7503."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def text_table(cells, names):
    """Lines: for each number of ranks and operation a table, p50 and p99 of each of `names`."""
    memcpy, lines = memcpy_of(cells), []
    for (ranks, operation), rows in rows_of(cells).items():
        lines += ["", f"{operation}, {ranks} ranks: us, p50 and p99; ratios of p50 to the best peer and to memcpy"]
        lines.append(f"{'bytes':>10}" + "".join(f" | {name:>17}" for name in names)
                     + "".join(f" | {name + ' / best':>15} {'/ memcpy':>8}" for name in OURS) + " | best peer")
        for row in rows.values():
            first = next(iter(row.values()))
            line = f"{first['bytes']:>10}"
            for name in names:
                cell = row.get(name)
                line += f" | {number(cell and cell['p50_us']):>8} {number(cell and cell['p99_us']):>8}"
            of = ratios(row, memcpy)
            for name in OURS:
                to_best, to_memcpy = of.get(name, (None, None))
                line += f" | {number(to_best):>15} {number(to_memcpy):>8}"
            best = best_peer(row)
            lines.append(line + f" | {best['by'] if best else '-'}")
    return lines
