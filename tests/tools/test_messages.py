"""Every sentence that the product says is in `tests/messages.txt`, whose diff says what a change says otherwise."""

from support.messages import FILE, catalogue


def test_the_catalogue_of_messages() -> None:
    """Compare whole files: that says which sentence is new or gone."""
    assert catalogue() == FILE.read_text("utf-8"), "run python tests/support/messages.py, and read the diff"
