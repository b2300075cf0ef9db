"""`python -m shardspec`: the same as the `shardspec` command."""

from shardspec.cli.main import main

if __name__ == "__main__":
    main()
