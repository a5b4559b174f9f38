"""The command line of a machine that does not wait long before it looks for machine 0."""

from gatherbench.bench import cli

USUAL = cli.app


def short_looks():
    # Loaded here: what `main` says to torch has to come before torch.
    from gatherbench.bench.commands import execute
    from gatherbench.bench.run import door

    door.LOOK_S = 1
    execute.finish = lambda *_: True  # tables and pictures take longer than all the rest
    USUAL()


if __name__ == "__main__":
    cli.app = short_looks
    cli.main()
