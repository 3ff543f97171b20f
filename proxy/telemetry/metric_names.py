"""All metrics: their kinds, names, help texts and labels.

Names follow Prometheus' conventions: base units (seconds, bytes), and `_total` at the end of counters, which is added
when they are written. Every help text can be read by itself. `docs/operations.md` says what to do about them.
"""

from typing import Literal

Kind = Literal["counter", "gauge", "seconds"]

# The metrics in the order of their output: kind, name, help text, labels.
METRICS: tuple[tuple[Kind, str, str, tuple[str, ...]], ...] = (
    (
        "gauge",
        "palimpsest_build_info",
        "1, labelled with the version of palimpsest and that of Python.",
        ("version", "python"),
    ),
    (
        "counter",
        "palimpsest_exchanges",
        "Calls of clients by how they ended (status: that of the last response of the upstream, 0 without one).",
        ("kind", "wire", "upstream", "status", "completeness"),
    ),
    ("counter", "palimpsest_request_bytes", "Bytes of the bodies of clients' requests.", ()),
    ("counter", "palimpsest_response_bytes", "Bytes of the bodies of responses to clients' calls.", ()),
    (
        "counter",
        "palimpsest_unread_answers",
        "Recorded responses that could not be read, of which tokens and prices are therefore unknown.",
        (),
    ),
    (
        "seconds",
        "palimpsest_first_byte_seconds",
        "Seconds from sending a client's request to the first byte of the response.",
        (),
    ),
    (
        "seconds",
        "palimpsest_exchange_seconds",
        "Seconds from sending a client's request to the end of the response.",
        (),
    ),
    (
        "seconds",
        "palimpsest_overhead_seconds",
        "Seconds that a client's call took in the proxy, from the whole request to sending it to the upstream.",
        (),
    ),
    (
        "gauge",
        "palimpsest_upstream_circuit_open",
        "1 while the last three calls or more to an upstream got no response or an error of the server.",
        ("upstream",),
    ),
    ("gauge", "palimpsest_tasks", "Calls and background tasks under way.", ()),
    (
        "counter",
        "palimpsest_descriptor_shortages",
        "How often idle connections were closed because hardly a file descriptor was free.",
        (),
    ),
    (
        "counter",
        "palimpsest_epochs",
        "Epochs (new, shorter beginnings of what is sent) by why they were opened.",
        ("why",),
    ),
    (
        "counter",
        "palimpsest_planned_calls",
        "Calls of which it was decided what to send, by what was sent (the fallback level).",
        ("rung",),
    ),
    ("counter", "palimpsest_failed_rungs", "Fallback levels that failed, so that the next one was sent.", ("rung",)),
    (
        "counter",
        "palimpsest_context_tokens",
        "Tokens of counted calls: side client, as clients made them; side upstream, as they were sent.",
        ("side",),
    ),
    ("counter", "palimpsest_ceilings_unreachable", "Sessions that cannot be cut to their ceiling.", ()),
    ("counter", "palimpsest_refused_epochs", "Epochs whose requests an upstream refused.", ()),
    ("counter", "palimpsest_removed_reasoning", "Messages that are sent without their signed reasoning.", ()),
    (
        "counter",
        "palimpsest_silent_overflows",
        "Requests too long for their model that an upstream accepted, by how that shows.",
        ("upstream", "kind"),
    ),
    (
        "counter",
        "palimpsest_unlike_caches",
        "Caches of providers that were found to work otherwise than the map of models says.",
        ("upstream",),
    ),
    ("counter", "palimpsest_calls_above_ceiling", "Managed calls sent above their ceiling.", ()),
    (
        "counter",
        "palimpsest_tokens_above_ceiling",
        "Tokens by which managed calls were above their ceilings, together.",
        (),
    ),
    (
        "gauge",
        "palimpsest_saved_tokens",
        "Saving so far as estimated when calls were planned, in tokens of uncached input.",
        (),
    ),
    (
        "gauge",
        "palimpsest_corrected_saved_tokens",
        "Saving so far by the usage that came back, in tokens of uncached input, without auxiliary calls; negative for"
        " a loss.",
        (),
    ),
    (
        "counter",
        "palimpsest_saved_money",
        "What managing saved by the usage that came back, in the currency of the prices, of models whose prices are"
        " known; palimpsest_lost_money_total is to be subtracted.",
        (),
    ),
    (
        "counter",
        "palimpsest_lost_money",
        "What managing cost more than it saved by the usage that came back, call by call, in the currency of the"
        " prices, of models whose prices are known.",
        (),
    ),
    (
        "counter",
        "palimpsest_usage_tokens",
        "Tokens that providers counted, of all calls: type input (cached and written ones included), cached, written"
        " or output.",
        ("kind", "model", "type"),
    ),
    (
        "counter",
        "palimpsest_spent_money",
        "What calls cost by the usage that came back, in the currency of the prices, of models whose prices are known;"
        " kind auxiliary: our own calls; kind shadow: clients' own requests that were sent behind shortened ones.",
        ("kind", "model"),
    ),
    (
        "counter",
        "palimpsest_unpriced_calls",
        "Calls with a usage that are not in palimpsest_spent_money_total, because no price of the model is known.",
        ("model",),
    ),
    ("counter", "palimpsest_cache_misses", "Calls that read clearly less of the cache than expected.", ("cause",)),
    (
        "counter",
        "palimpsest_cache_missed_tokens",
        "Tokens that should have been read from a provider's cache and were not.",
        ("cause",),
    ),
    (
        "counter",
        "palimpsest_cache_missed_cost_tokens",
        "What missed cache reads cost, in tokens of uncached input.",
        ("cause",),
    ),
    (
        "counter",
        "palimpsest_cache_missed_money",
        "What missed cache reads cost, in the currency of the prices, of models whose prices are known.",
        ("cause",),
    ),
    ("counter", "palimpsest_auxiliary_calls", "Calls of our own for summaries, by verdict.", ("upstream", "verdict")),
    (
        "counter",
        "palimpsest_summaries",
        "Summaries by what they were made of and how: 1 and 2 by a model, 3 without one.",
        ("kind", "level"),
    ),
    (
        "counter",
        "palimpsest_auxiliary_tokens",
        "What calls of our own for summaries cost, in tokens of uncached input.",
        (),
    ),
    (
        "counter",
        "palimpsest_wasted_tokens",
        "What summaries cost that were never used, in tokens of uncached input.",
        (),
    ),
    ("counter", "palimpsest_nudges", "Nudges of agents that nobody prompted, by how many in a row.", ("attempt",)),
    (
        "counter",
        "palimpsest_doom_loops",
        "Models found to call a tool again and again with the same arguments, by whether its output was the same.",
        ("output",),
    ),
    ("counter", "palimpsest_erased_sessions", "Sessions whose content was erased, by why.", ("cause",)),
    ("counter", "palimpsest_erased_bytes", "Bytes of content that were erased, as they were stored.", ("cause",)),
    (
        "counter",
        "palimpsest_webhooks",
        "Events for webhooks, by host and verdict: delivered, refused, failed too often, or dropped for lack of room.",
        ("host", "verdict"),
    ),
    ("counter", "palimpsest_idle_sessions", "Sessions that went idle because no nudge was answered.", ()),
    (
        "seconds",
        "palimpsest_auxiliary_seconds",
        "Seconds from the request to the end of the response of a call of our own for a summary.",
        (),
    ),
    ("counter", "palimpsest_embedding_calls", "Calls of our own for vectors, by verdict.", ("upstream", "verdict")),
    (
        "counter",
        "palimpsest_embedding_tokens",
        "What calls of our own for vectors cost, in tokens of uncached input.",
        (),
    ),
    ("counter", "palimpsest_embedded_texts", "Vectors that calls of our own brought, of passages and of queries.", ()),
    (
        "counter",
        "palimpsest_shadow_calls",
        "Clients' own requests that were sent behind shortened ones, by verdict.",
        ("upstream", "verdict"),
    ),
    ("counter", "palimpsest_shadow_tokens", "What these requests cost, in tokens of uncached input.", ()),
    (
        "counter",
        "palimpsest_shadow_comparisons",
        "Answers to clients' own requests by how they compare with what the client got: same, other arguments, other"
        " text, other tool, or uncompared.",
        ("model", "verdict"),
    ),
    (
        "gauge",
        "palimpsest_log_pending_records",
        "Records that are not yet in log.db (with durability normal, the journal has them).",
        (),
    ),
    ("gauge", "palimpsest_log_pending_bytes", "Bytes of memory of the records that are not yet in log.db.", ()),
    ("counter", "palimpsest_log_dropped_records", "Records of calls that are lost for good.", ()),
    ("gauge", "palimpsest_log_degraded", "1 while responses do not wait until their record is durable.", ()),
    ("gauge", "palimpsest_log_bytes", "Size of the log on disk by file: database, wal or journal.", ("file",)),
    ("gauge", "palimpsest_log_max_bytes", "Most bytes that the database of the log may have; 0: no limit.", ()),
    ("gauge", "palimpsest_disk_free_bytes", "Bytes that the disk of the log has left.", ()),
    ("gauge", "palimpsest_index_behind_records", "Records of the log that search does not find yet.", ()),
    ("gauge", "palimpsest_index_behind_seconds", "Age of the oldest call that search does not find yet.", ()),
    ("gauge", "palimpsest_index_bytes", "Size of the index of search on disk.", ()),
    ("gauge", "palimpsest_index_vectors", "Passages of the index that have a vector.", ()),
    (
        "gauge",
        "palimpsest_index_passages_unexamined",
        "Passages of sessions with vectors of which it is not known yet whether they need one.",
        (),
    ),
    ("gauge", "palimpsest_index_rebuilding", "1 while the index is made anew and has not caught up.", ()),
)
