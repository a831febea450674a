"""`python -m tutelage` is the command `tutelage`."""

from tutelage.cli import main

if __name__ == "__main__":
    main()
