"""What a text should look like, in words: a regular expression is no answer to a person.

By the pattern itself, so that a schema and its refusal cannot part. A test finds patterns that
lack words.
"""

from typing import Final

FORMS: Final[dict[str, str]] = {
    r"^[a-z0-9][a-z0-9-]{0,38}/[a-z0-9][a-z0-9-]{0,38}$": (
        "a pool's name as owner/pool: small letters, digits and dashes, such as ann/lab"
    ),
    r"^f-[a-z2-9]{8}$": "a fellow's id, such as f-8fq2m4xc",
    r"^f-[a-z2-9]{8}:[0-9]{1,2}$": "a card as fellow_id:index, such as f-8fq2m4xc:0",
    r"^j-[a-z2-9]{8}$": "a job's id, such as j-8fq2m4xc",
    r"^i-[a-z2-9]{8}$": "an invite's id, such as i-8fq2m4xc",
    r"^t-[a-z2-9]{8}$": "an access token's id, such as t-8fq2m4xc",
    r"^[0-9a-f]{16}$": "a plan_id: 16 digits of 0-9 and a-f, as jobs_plan and models_plan give it",
    r"^[0-9a-f]{64}$": "a SHA-256: 64 digits of 0-9 and a-f",
    r"^[a-z0-9][a-z0-9-]{0,62}$": (
        "1 to 63 small letters, digits and dashes, beginning with a letter or digit"
    ),
    r"^(local:[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
    r"|[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(@[A-Za-z0-9][A-Za-z0-9._-]{0,63})?$": (
        "a model as local:NAME or org/name, with @revision behind it if one is meant"
    ),
    r"^[A-Za-z0-9._:-]{1,64}$": "1 to 64 letters, digits, dots, dashes, colons and underscores",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$": (
        "a name of 1 to 96 letters, digits, dots, dashes and underscores, no folder"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": (
        "a name of 1 to 64 letters, digits, dots, dashes and underscores"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
    r"(@[A-Za-z0-9][A-Za-z0-9._/-]{0,63})?$": (
        "a data set as org/name, with @revision behind it if one is meant"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$": (
        "a name of 1 to 60 letters, digits, dots, dashes and underscores"
    ),
}


def form(pattern: str) -> str:
    """The words for a pattern; the pattern itself when it has none."""
    return FORMS.get(pattern, f"text that matches {pattern}")
