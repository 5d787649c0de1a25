"""Print how much of the exchange of gradients is hidden behind the backward pass.

    mpiexec -n 2 python benchmarks/overlap.py resnet50 --quick --bucket-mib 1 4 16
    benchmarks/slow_network.sh 1gbit python benchmarks/overlap.py resnet50 --quick
    mpiexec -n 2 python benchmarks/overlap.py resnet50 --quick --link 1 0.2

Each row is the step with another `distributed.bucket_bytes`; with --without-looks again with a step
that calls MPI only where it begins an exchange and waits for one.  With --link, reductions land as
late as over a network of so many Gbit/s and ms (`slow_link.py`).  All steps take turns; times are
medians, and the spread is the largest distance between the quartiles over the median.  Hidden is
the share of what can be: of the shorter of the backward pass, two thirds of the step alone, and the
exchange alone.
"""

import argparse
import statistics

import slow_link
from turns import take_turns

from minigraph.bench import ours
from minigraph.bench.cases import NETWORKS
from minigraph.bench.results import SideResult
from minigraph.bench.tables import Table, milliseconds
from minigraph.bench.worker import Task, hidden_share, seconds_of_all, take_cores
from minigraph.devices.cpu.collective import InFlight
from minigraph.distributed import world

MIB = 1 << 20
HEADER = ("bucket", "collectives", "step", "alone", "exchange", "hidden", "report says", "spread")


def steps_of(task, subject, bucket_bytes):
    """Return a step with its exchange, the exchange alone, and the function that the step calls."""
    cg = ours.graph_for(task, 3)
    cg.set_option("distributed.bucket_bytes", bucket_bytes)
    net = subject.network(ours.LIBRARY)
    call, batches = ours.training(cg, subject, net)
    talk = ours.exchange(cg, [p.shape for p in net.parameters()])
    return ours.until_done(call, batches, task), talk, call


def measure(given):
    """Return the rows of the table: what the processes measure; all of them call this."""

    def task(batch_size):
        settings = given.quick, "float32", given.budget
        return Task(given.network, "3", "cpu", 1, batch_size, *settings)

    whole = task(task(given.batch_size).subject.images * world().size)
    subject = whole.subject
    same, batches = ours.training(
        ours.graph_for(whole, 3), subject, subject.network(ours.LIBRARY), reduce=False
    )
    sides = {"alone": ours.until_done(same, batches, whole)}
    calls = {}
    look = InFlight.after
    for looks in (True, False)[: 1 + given.without_looks]:
        InFlight.after = look if looks else lambda self, step, linker: []
        for size in given.bucket_mib:
            name = f"{size:g} MiB{'' if looks else ', no looks'}"
            step, talk, calls[name] = steps_of(whole, subject, int(size * MIB))
            sides |= {f"step {name}": step, f"exchange {name}": talk}
            step()
            talk()
    turns = take_turns(
        [lambda each=each: seconds_of_all(each) for each in sides.values()], given.turns
    )
    taken = dict(zip(sides, turns.T.tolist(), strict=True))
    median = {name: statistics.median(times) for name, times in taken.items()}
    spread = {name: SideResult(times).spread for name, times in taken.items()}
    for name, call in calls.items():
        names = f"step {name}", "alone", f"exchange {name}"
        report = call.report()
        times = [median[each] for each in names]
        yield [
            *(name, str(len(report.traffic)), *map(milliseconds, times)),
            *(f"{hidden_share(*times):.0%}", f"{report.hidden:.0%}"),
            f"{max(spread[each] for each in names):.0%}",
        ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS, metavar="NETWORK")
    parser.add_argument("--quick", action="store_true", help="smaller images")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images of each process")
    parser.add_argument("--bucket-mib", type=float, nargs="+", default=[4.0], metavar="MIB")
    parser.add_argument("--budget", type=float, default=60.0, metavar="S", help="of tuning")
    parser.add_argument("--turns", type=int, default=7, metavar="N")
    parser.add_argument("--without-looks", action="store_true", help="measure this, too")
    names = ("GBIT", "MS")
    parser.add_argument("--link", type=float, nargs=2, metavar=names, help="to delay messages as")
    given = parser.parse_args()
    if world().size == 1:
        parser.error("takes several processes: mpiexec -n 2 python benchmarks/overlap.py ...")
    take_cores(1)
    if given.link:
        gbit, ms = given.link
        slow_link.connect(world(), gbit * 1e9 / 8, ms / 1e3)
    rows = [*measure(given)]
    if world().rank == 0:
        title = f"{NETWORKS[given.network].title} in {world().size} processes"
        about = (__doc__ or "").split("\n\n")[-1].replace("\n", " ")
        print("\n".join(Table(title, about, HEADER, rows).text(100)))


if __name__ == "__main__":
    main()
