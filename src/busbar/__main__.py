"""`python -m busbar` is the command `busbar`."""

from busbar.cli.main import main

if __name__ == "__main__":
    main()
