"""The program of the worker process: makes plans, reads long texts, and requests outlines, one job at a time.

While it has none, it indexes the log for search. It reads jobs from standard input and writes results to standard
output (`frames`). It ends at the end of its input. Neither its environment nor its jobs contain API keys; the only
secret it gets is the one that makes references unguessable.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy
from proxy.context.model_catalog import Encoding
from proxy.context.outline import OutlineJob, outline
from proxy.engine.context.epoch_planner import FeatureCache, PlanJob, compute_plan
from proxy.engine.text_jobs import TextJob, Tools, compute
from proxy.engine.token_counter import MeasureJob, measure
from proxy.model import Value
from proxy.model.search import IndexHealth
from proxy.store.search.indexer import Indexer
from proxy.upstream.tokenizer import CountingTokenizer, import_function, make_tokenizer
from proxy.worker.frames import end_with_parent, serve, write_no_core
from proxy.worker.indexing import IdleIndexing, IndexJob, PassageJob, VectorJob
from proxy.worker.outlines import Outliner

# Text that the builder writes is counted in the encoding of most models. It is counted again once it is sent.
COUNTED_IN: Encoding = "o200k_base"

Job = PlanJob | MeasureJob | OutlineJob | TextJob | IndexJob | PassageJob | VectorJob


class WorkerSettings(Value):
    """The settings of a worker process: how plans are made, and the size of its cache of message features.

    `log` is the path of the log that it indexes; without one it indexes nothing. `estimator` is the dotted path of the
    function that counts tokens, and `search_path` where modules are looked for besides.
    """

    builder: BuilderPolicy
    cache_bytes: int
    log: str = ""
    estimator: str = ""
    search_path: tuple[str, ...] = ()


class Jobs:
    """Does jobs. Its cache of message features saves time; no result depends on it."""

    def __init__(self, settings: WorkerSettings, indexer: Indexer | None = None) -> None:
        self._indexer = indexer
        self.tokenizer = make_tokenizer(import_function(settings.estimator) if settings.estimator else None)
        self.outliner = Outliner()
        features = FeatureCache(settings.cache_bytes)
        count = partial(count_text, self.tokenizer)
        self._builder = ContextBuilder(settings.builder, count, features.find, self.outliner.outline)
        self._tools: Tools = {"count": count, "extract": features.find}

    def do(self, job: Job) -> Any:
        """Return the result of a job. Raises any error that the job raises."""
        if isinstance(job, IndexJob):
            return self._look_at_index(job)
        if isinstance(job, PassageJob):
            return self._expect_indexer().list_passages(job.session, job.model)
        if isinstance(job, VectorJob):
            return self._expect_indexer().keep_vectors(job.session, job.model, job.batch)
        if isinstance(job, OutlineJob):
            return outline(job.text, job.path, self.outliner.outline)
        if isinstance(job, PlanJob):
            return compute_plan(job, self._builder)
        if isinstance(job, TextJob):
            return compute(job, self._tools)
        return [*measure(job, self.tokenizer)]

    def _expect_indexer(self) -> Indexer:
        assert self._indexer is not None, "only an indexed log has passages"
        return self._indexer

    def _look_at_index(self, job: IndexJob) -> IndexHealth:
        if self._indexer is None:
            return IndexHealth()
        if job.is_rebuilt:
            self._indexer.rebuild()
        return self._indexer.health


def count_text(tokenizer: CountingTokenizer, text: str) -> int:
    """Count the tokens of a text that the proxy writes."""
    return tokenizer.count(text, COUNTED_IN)[0]


def main() -> None:
    """Serve standard input, without a core dump."""
    write_no_core()
    end_with_parent()
    settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
    sys.path += [each for each in settings.search_path if each not in sys.path]
    indexer = Indexer(Path(settings.log)) if settings.log else None
    jobs = Jobs(settings, indexer)
    jobs.tokenizer.warm(COUNTED_IN)
    source, decode = sys.stdin.buffer, msgspec.msgpack.Decoder(Job).decode
    try:
        if indexer is None:
            serve(jobs.do, decode, source, sys.stdout.buffer)
        else:
            serve(jobs.do, decode, source, sys.stdout.buffer, IdleIndexing(indexer, source).run)
    finally:
        jobs.outliner.close()
        if indexer is not None:
            indexer.close()


if __name__ == "__main__":
    main()
