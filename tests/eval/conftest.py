"""A small evaluation whose engine is stood in for."""

import pytest
from evaluating import STUDENT, row, write_data

from opdvr.eval import sampling
from opdvr.inference import Completion


@pytest.fixture
def data(tmp_path):
    rows = [row("12*3+4=?", "40"), row("2*3+4=?", "10"), row("5*3+4=?", "19", "other")]
    return write_data(tmp_path / "data.parquet", rows)


@pytest.fixture
def arguments(tmp_path, data):
    """The command line of a small evaluation."""
    return [
        *("--model", str(STUDENT), "--data", str(data), "--output", str(tmp_path / "out")),
        *("--n", "2", "--device", "cpu", "--max-tokens", "9"),
    ]


@pytest.fixture
def engine(monkeypatch):
    """Stands in for vLLM: answers 40 to everything; `asked` has the requests of each start."""

    class Engine:
        asked = []
        stop_after = None
        options = {}

        def generate(self, settings, sampling, requests, engines, apart, ready):
            self.asked.append(list(requests))
            self.settings, self.sampling, self.apart = settings, sampling, apart
            ready()
            for count, request in enumerate(self.asked[-1]):
                if count == self.stop_after:
                    raise KeyboardInterrupt
                finish = "length" if request.prompt == 2 else "stop"
                yield Completion(request.prompt, request.sample, (5, 6), "\\boxed{40}", finish)

    engine = Engine()
    engine.asked = []
    monkeypatch.setattr(sampling, "generate", engine.generate)
    return engine
