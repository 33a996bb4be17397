"""What a plan says of its data in words: what was chosen, how far it is checked, what was found.

Pure. The findings themselves are made where the data is read.
"""

from transport.api.job_config import DataConfig
from transport.api.plans import Chosen, DataShape


def chosen_data(data: DataShape | None, config: DataConfig) -> list[Chosen]:
    """The data set, where the job names no data."""
    if data is None or data.dataset is None or config.dataset is not None:
        return []
    why = "the job names no data, so it trains on WikiText"
    return [Chosen(setting="data.dataset", value=data.dataset, reason=why)]


def data_notes(data: DataShape | None) -> list[str]:
    """How far the data is checked, until all is."""
    if data is None or data.checked_share in (None, 1.0):
        return []
    return [f"data: {100 * data.checked_share:.0f} % checked; its figures come when all is"]


def data_sentence(data: DataShape | None) -> str:
    """What was found, for a reader of the summary alone; "" when nothing was."""
    if data is None or not data.findings:
        return ""
    more = len(data.findings) - 1
    rest = f"; {more} more kinds of fault are in data.findings" if more else ""
    return f" Data: {data.findings[0].words}{rest}."
