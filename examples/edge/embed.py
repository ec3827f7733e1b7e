"""Write the vector of every line of stdin as JSON, one a line: python embed.py BUNDLE < texts > vectors."""

import json
import sys

from whiten import Encoder, WhitenError


def main(arguments: list[str]) -> None:
    """Embed the texts of stdin with the bundle that is named.

    Raises:
        SystemExit: there is no bundle, or a text cannot be embedded.
    """
    if len(arguments) != 1:
        sys.exit("usage: python embed.py BUNDLE < texts > vectors; one text a line")
    try:
        with Encoder(arguments[0]) as encoder:
            for line in sys.stdin:
                print(json.dumps(encoder.encode(line.rstrip("\n")).tolist()), flush=True)
    except WhitenError as error:
        sys.exit(f"embed.py: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
