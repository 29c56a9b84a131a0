"""Size against time as SVG, one picture for each operation and number of ranks. matplotlib is not required."""

import pathlib

from peers.table import rows_of

# Distinct for colour-blind readers too; ours are the thick lines.
COLOURS = ("#4477aa", "#66ccee", "#ee6677", "#ccbb44", "#228833", "#aa3377", "#bbbbbb", "#000000")


def draw(cells, names, folder):
    """Writes the pictures into `folder`. Returns one line that says what was done, or why nothing was."""
    try:
        import matplotlib
    except ImportError:
        return "no plots: this Python has no matplotlib (Debian: python3-matplotlib)"
    matplotlib.use("svg")
    from matplotlib import pyplot
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = {key: by_size for key, by_size in rows_of(cells).items() if key[1] != "barrier"}
    for (ranks, operation), by_size in rows.items():
        figure, axes = pyplot.subplots(figsize=(7.5, 5))
        for colour, name in zip(COLOURS, names):
            points = [(row[name]["bytes"], row[name]["p50_us"]) for row in by_size.values() if name in row]
            if points:
                axes.plot(*zip(*points), color=colour, label=name, marker="o", markersize=3,
                          linewidth=2.5 if name in names[:2] else 1.2)
        axes.set(xscale="log", yscale="log", xlabel="bytes of a rank", ylabel="us, p50",
                 title=f"{operation}, {ranks} ranks")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(folder / f"{operation}-{ranks}.svg")
        pyplot.close(figure)
    return f"{len(rows)} plots in {folder}"
