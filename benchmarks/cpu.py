"""MiniLM on MRPC on the CPU, fp32 on all cores: Glassloop beside the usual loops, in turn, each in a process of its own.

    python benchmarks/cpu.py [--data GLUE] [--repeats 3] [--steps 40]

Without --data the quickstart pairs are used.
"""

from __future__ import annotations

from jobs import Job, load_rows
from reports import Report, parser_of, settings_of

CONTENDERS = "trainer,accelerate,notes,plain,fast"
SIZES = (8, 32, 128)
WARM_UP = 10


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="batch sizes to predict with")
    given = parser.parse_args()
    model, block = given.model or "minilm", given.steps or 40
    data = "random rows" if given.synthetic else "MRPC" if given.data else "the quickstart pairs"
    short = model.rsplit("/", 1)[-1]
    rows = "random" if given.synthetic else "mrpc" if given.data else "quickstart"
    report = Report(given, f"cpu-{short}-{rows}", f"{short} on {data}, fp32, batch {given.batch_size}")
    jobs = [
        Job(
            contender,
            **settings_of(given),
            model=model,
            batch_size=given.batch_size,
            steps=WARM_UP + block,
            schedule=1377,
            warm_up=WARM_UP,
            block=block,
            eval_sizes=tuple(int(size) for size in given.sizes.split(",") if size),
        )
        for contender in (given.contenders or CONTENDERS).split(",")
    ]
    load_rows(jobs[0])  # tokenized once, for all
    report.run(jobs, given.repeats)
    report.show()


if __name__ == "__main__":
    main()
