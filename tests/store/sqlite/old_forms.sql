-- How versions before 0.2 made log.db, and what each added: the tables of a log of any of them. Frozen: they were in use.
-- `m005_tallies` adds rows of `meta` only, which are computed from the rows of tables.

-- m001_record
PRAGMA application_id = 1346456649;
CREATE TABLE migration(name TEXT PRIMARY KEY, at_ms INTEGER NOT NULL) STRICT;
CREATE TABLE tenant(id INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL UNIQUE) STRICT;
CREATE TABLE blob(
        id INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL,
        UNIQUE(tenant, digest)) STRICT;
CREATE TABLE payload(id INTEGER PRIMARY KEY, codec INTEGER NOT NULL, bytes BLOB NOT NULL) STRICT;
CREATE TABLE raw(
        link BLOB PRIMARY KEY, parent BLOB NOT NULL, gap BLOB NOT NULL, blob INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE session(
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, tenant INTEGER NOT NULL REFERENCES tenant(id),
        upstream TEXT NOT NULL, family TEXT NOT NULL, created_ms INTEGER NOT NULL) STRICT;
CREATE TABLE plan(
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES session(id), view TEXT NOT NULL, tip BLOB NOT NULL,
        mode TEXT NOT NULL, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL, value TEXT NOT NULL,
        UNIQUE(session, view, tip, mode, attempt)) STRICT;
CREATE TABLE exchange(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        headers INTEGER NOT NULL, envelope INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, n INTEGER NOT NULL,
        kind TEXT NOT NULL, wire TEXT NOT NULL, mode TEXT NOT NULL, model TEXT NOT NULL, method TEXT NOT NULL,
        target TEXT NOT NULL, changes BLOB NOT NULL, tip BLOB NOT NULL, size INTEGER NOT NULL, whole BLOB NOT NULL,
        opened_ms INTEGER NOT NULL,
        UNIQUE(session, n)) STRICT;
CREATE TABLE round(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, envelope INTEGER,
        exchange INTEGER NOT NULL REFERENCES exchange(seq), k INTEGER NOT NULL, upstream TEXT NOT NULL, tip BLOB,
        size INTEGER, whole BLOB, plan INTEGER,
        UNIQUE(exchange, k)) STRICT;
CREATE TABLE outcome(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, headers INTEGER NOT NULL, exchange INTEGER NOT NULL,
        k INTEGER NOT NULL, changes BLOB NOT NULL, received INTEGER NOT NULL, digest BLOB NOT NULL,
        size INTEGER NOT NULL, whole BLOB NOT NULL, status INTEGER NOT NULL, completeness TEXT NOT NULL,
        head_ms REAL NOT NULL, first_byte_ms REAL NOT NULL, total_ms REAL NOT NULL, error TEXT NOT NULL,
        UNIQUE(exchange, k), FOREIGN KEY(exchange, k) REFERENCES round(exchange, k)) STRICT;
CREATE TABLE trailer(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, exchange INTEGER NOT NULL, k INTEGER NOT NULL, i INTEGER NOT NULL,
        received INTEGER NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL,
        UNIQUE(exchange, k, i), FOREIGN KEY(exchange, k) REFERENCES outcome(exchange, k)) STRICT;
CREATE TABLE reading(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, exchange INTEGER NOT NULL, k INTEGER NOT NULL,
        answer INTEGER NOT NULL, digest BLOB NOT NULL, error INTEGER, error_digest BLOB, input INTEGER, output INTEGER,
        cached INTEGER, written INTEGER, reasoning INTEGER, finish TEXT NOT NULL,
        UNIQUE(exchange, k), FOREIGN KEY(exchange, k) REFERENCES outcome(exchange, k)) STRICT;
CREATE TABLE erasure(
        seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, scope TEXT NOT NULL, payload INTEGER NOT NULL,
        digest BLOB NOT NULL) STRICT;
CREATE INDEX erasure_payload ON erasure(payload);
CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE permit(token TEXT PRIMARY KEY) STRICT;
CREATE TRIGGER tenant_keep BEFORE UPDATE ON tenant BEGIN SELECT RAISE(ABORT, 'tenant is append-only'); END;
CREATE TRIGGER tenant_hold BEFORE DELETE ON tenant  BEGIN SELECT RAISE(ABORT, 'tenant is append-only'); END;
CREATE TRIGGER tenant_once BEFORE INSERT ON tenant WHEN EXISTS (SELECT 1 FROM tenant WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM tenant WHERE fingerprint = NEW.fingerprint) BEGIN SELECT RAISE(ABORT, 'tenant is append-only'); END;
CREATE TRIGGER blob_keep BEFORE UPDATE ON blob BEGIN SELECT RAISE(ABORT, 'blob is append-only'); END;
CREATE TRIGGER blob_hold BEFORE DELETE ON blob  BEGIN SELECT RAISE(ABORT, 'blob is append-only'); END;
CREATE TRIGGER blob_once BEFORE INSERT ON blob WHEN EXISTS (SELECT 1 FROM blob WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM blob WHERE tenant = NEW.tenant AND digest = NEW.digest) BEGIN SELECT RAISE(ABORT, 'blob is append-only'); END;
CREATE TRIGGER payload_keep BEFORE UPDATE ON payload BEGIN SELECT RAISE(ABORT, 'payload is append-only'); END;
CREATE TRIGGER payload_hold BEFORE DELETE ON payload WHEN NOT EXISTS (SELECT 1 FROM permit) BEGIN SELECT RAISE(ABORT, 'payload is append-only'); END;
CREATE TRIGGER payload_once BEFORE INSERT ON payload WHEN EXISTS (SELECT 1 FROM payload WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'payload is append-only'); END;
CREATE TRIGGER raw_keep BEFORE UPDATE ON raw BEGIN SELECT RAISE(ABORT, 'raw is append-only'); END;
CREATE TRIGGER raw_hold BEFORE DELETE ON raw  BEGIN SELECT RAISE(ABORT, 'raw is append-only'); END;
CREATE TRIGGER raw_once BEFORE INSERT ON raw WHEN EXISTS (SELECT 1 FROM raw WHERE link = NEW.link) BEGIN SELECT RAISE(ABORT, 'raw is append-only'); END;
CREATE TRIGGER session_keep BEFORE UPDATE ON session BEGIN SELECT RAISE(ABORT, 'session is append-only'); END;
CREATE TRIGGER session_hold BEFORE DELETE ON session  BEGIN SELECT RAISE(ABORT, 'session is append-only'); END;
CREATE TRIGGER session_once BEFORE INSERT ON session WHEN EXISTS (SELECT 1 FROM session WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM session WHERE key = NEW.key) BEGIN SELECT RAISE(ABORT, 'session is append-only'); END;
CREATE TRIGGER plan_keep BEFORE UPDATE ON plan BEGIN SELECT RAISE(ABORT, 'plan is append-only'); END;
CREATE TRIGGER plan_hold BEFORE DELETE ON plan  BEGIN SELECT RAISE(ABORT, 'plan is append-only'); END;
CREATE TRIGGER plan_once BEFORE INSERT ON plan WHEN EXISTS (SELECT 1 FROM plan WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM plan WHERE session = NEW.session AND view = NEW.view AND tip = NEW.tip AND mode = NEW.mode AND attempt = NEW.attempt) BEGIN SELECT RAISE(ABORT, 'plan is append-only'); END;
CREATE TRIGGER exchange_keep BEFORE UPDATE ON exchange BEGIN SELECT RAISE(ABORT, 'exchange is append-only'); END;
CREATE TRIGGER exchange_hold BEFORE DELETE ON exchange  BEGIN SELECT RAISE(ABORT, 'exchange is append-only'); END;
CREATE TRIGGER exchange_once BEFORE INSERT ON exchange WHEN EXISTS (SELECT 1 FROM exchange WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM exchange WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM exchange WHERE session = NEW.session AND n = NEW.n) BEGIN SELECT RAISE(ABORT, 'exchange is append-only'); END;
CREATE TRIGGER round_keep BEFORE UPDATE ON round BEGIN SELECT RAISE(ABORT, 'round is append-only'); END;
CREATE TRIGGER round_hold BEFORE DELETE ON round  BEGIN SELECT RAISE(ABORT, 'round is append-only'); END;
CREATE TRIGGER round_once BEFORE INSERT ON round WHEN EXISTS (SELECT 1 FROM round WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM round WHERE exchange = NEW.exchange AND k = NEW.k) BEGIN SELECT RAISE(ABORT, 'round is append-only'); END;
CREATE TRIGGER outcome_keep BEFORE UPDATE ON outcome BEGIN SELECT RAISE(ABORT, 'outcome is append-only'); END;
CREATE TRIGGER outcome_hold BEFORE DELETE ON outcome  BEGIN SELECT RAISE(ABORT, 'outcome is append-only'); END;
CREATE TRIGGER outcome_once BEFORE INSERT ON outcome WHEN EXISTS (SELECT 1 FROM outcome WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM outcome WHERE exchange = NEW.exchange AND k = NEW.k) BEGIN SELECT RAISE(ABORT, 'outcome is append-only'); END;
CREATE TRIGGER trailer_keep BEFORE UPDATE ON trailer BEGIN SELECT RAISE(ABORT, 'trailer is append-only'); END;
CREATE TRIGGER trailer_hold BEFORE DELETE ON trailer  BEGIN SELECT RAISE(ABORT, 'trailer is append-only'); END;
CREATE TRIGGER trailer_once BEFORE INSERT ON trailer WHEN EXISTS (SELECT 1 FROM trailer WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM trailer WHERE exchange = NEW.exchange AND k = NEW.k AND i = NEW.i) BEGIN SELECT RAISE(ABORT, 'trailer is append-only'); END;
CREATE TRIGGER reading_keep BEFORE UPDATE ON reading BEGIN SELECT RAISE(ABORT, 'reading is append-only'); END;
CREATE TRIGGER reading_hold BEFORE DELETE ON reading  BEGIN SELECT RAISE(ABORT, 'reading is append-only'); END;
CREATE TRIGGER reading_once BEFORE INSERT ON reading WHEN EXISTS (SELECT 1 FROM reading WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM reading WHERE exchange = NEW.exchange AND k = NEW.k) BEGIN SELECT RAISE(ABORT, 'reading is append-only'); END;
CREATE TRIGGER erasure_keep BEFORE UPDATE ON erasure BEGIN SELECT RAISE(ABORT, 'erasure is append-only'); END;
CREATE TRIGGER erasure_hold BEFORE DELETE ON erasure  BEGIN SELECT RAISE(ABORT, 'erasure is append-only'); END;
CREATE TRIGGER erasure_once BEFORE INSERT ON erasure WHEN EXISTS (SELECT 1 FROM erasure WHERE seq = NEW.seq) BEGIN SELECT RAISE(ABORT, 'erasure is append-only'); END;
CREATE TRIGGER migration_keep BEFORE UPDATE ON migration BEGIN SELECT RAISE(ABORT, 'migration is append-only'); END;
CREATE TRIGGER migration_hold BEFORE DELETE ON migration  BEGIN SELECT RAISE(ABORT, 'migration is append-only'); END;
CREATE TRIGGER migration_once BEFORE INSERT ON migration WHEN EXISTS (SELECT 1 FROM migration WHERE name = NEW.name) BEGIN SELECT RAISE(ABORT, 'migration is append-only'); END;

-- m002_lineage
ALTER TABLE session ADD COLUMN parent TEXT NOT NULL DEFAULT '';
CREATE INDEX session_tenant ON session(tenant);
CREATE INDEX session_family ON session(family) WHERE family <> '';
CREATE INDEX session_parent ON session(parent) WHERE parent <> '';
CREATE TABLE node(
        session INTEGER NOT NULL, n INTEGER NOT NULL, hash BLOB NOT NULL, parent INTEGER NOT NULL, outer BLOB,
        is_answer INTEGER NOT NULL, exchange INTEGER NOT NULL, seal BLOB NOT NULL,
        PRIMARY KEY(session, n)) STRICT, WITHOUT ROWID;
CREATE INDEX node_hash ON node(substr(hash, 1, 6), is_answer, session);
CREATE TABLE step(
        session INTEGER NOT NULL, n INTEGER NOT NULL, tip INTEGER NOT NULL, outer BLOB, depth INTEGER NOT NULL,
        base INTEGER NOT NULL, relation INTEGER NOT NULL, is_side INTEGER NOT NULL,
        PRIMARY KEY(session, n)) STRICT, WITHOUT ROWID;
CREATE TABLE mark(
        session INTEGER NOT NULL, n INTEGER NOT NULL, node INTEGER NOT NULL, key BLOB NOT NULL, name TEXT NOT NULL,
        form BLOB NOT NULL,
        PRIMARY KEY(session, n)) STRICT, WITHOUT ROWID;
CREATE INDEX mark_key ON mark(key, session);
CREATE TABLE adoption(
        session INTEGER NOT NULL, n INTEGER NOT NULL, source INTEGER NOT NULL, node INTEGER NOT NULL,
        at_ms INTEGER NOT NULL,
        PRIMARY KEY(session, n)) STRICT, WITHOUT ROWID;
CREATE TRIGGER node_keep BEFORE UPDATE ON node BEGIN SELECT RAISE(ABORT, 'node is append-only'); END;
CREATE TRIGGER node_hold BEFORE DELETE ON node  BEGIN SELECT RAISE(ABORT, 'node is append-only'); END;
CREATE TRIGGER node_once BEFORE INSERT ON node WHEN EXISTS (SELECT 1 FROM node WHERE session = NEW.session AND n = NEW.n) BEGIN SELECT RAISE(ABORT, 'node is append-only'); END;
CREATE TRIGGER step_keep BEFORE UPDATE ON step BEGIN SELECT RAISE(ABORT, 'step is append-only'); END;
CREATE TRIGGER step_hold BEFORE DELETE ON step  BEGIN SELECT RAISE(ABORT, 'step is append-only'); END;
CREATE TRIGGER step_once BEFORE INSERT ON step WHEN EXISTS (SELECT 1 FROM step WHERE session = NEW.session AND n = NEW.n) BEGIN SELECT RAISE(ABORT, 'step is append-only'); END;
CREATE TRIGGER mark_keep BEFORE UPDATE ON mark BEGIN SELECT RAISE(ABORT, 'mark is append-only'); END;
CREATE TRIGGER mark_hold BEFORE DELETE ON mark  BEGIN SELECT RAISE(ABORT, 'mark is append-only'); END;
CREATE TRIGGER mark_once BEFORE INSERT ON mark WHEN EXISTS (SELECT 1 FROM mark WHERE session = NEW.session AND n = NEW.n) BEGIN SELECT RAISE(ABORT, 'mark is append-only'); END;
CREATE TRIGGER adoption_keep BEFORE UPDATE ON adoption BEGIN SELECT RAISE(ABORT, 'adoption is append-only'); END;
CREATE TRIGGER adoption_hold BEFORE DELETE ON adoption  BEGIN SELECT RAISE(ABORT, 'adoption is append-only'); END;
CREATE TRIGGER adoption_once BEFORE INSERT ON adoption WHEN EXISTS (SELECT 1 FROM adoption WHERE session = NEW.session AND n = NEW.n) BEGIN SELECT RAISE(ABORT, 'adoption is append-only'); END;

-- m003_managed
CREATE TABLE epoch(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        id TEXT NOT NULL UNIQUE, view TEXT NOT NULL, parent INTEGER REFERENCES epoch(seq), through BLOB NOT NULL,
        depth INTEGER NOT NULL, why TEXT NOT NULL, exchange INTEGER REFERENCES exchange(seq),
        opened_ms INTEGER NOT NULL, tokens_before INTEGER NOT NULL, tokens_after INTEGER NOT NULL,
        edits INTEGER NOT NULL, edits_digest BLOB NOT NULL, rendered TEXT NOT NULL, originals TEXT NOT NULL,
        digest BLOB NOT NULL) STRICT;
CREATE INDEX epoch_session ON epoch(session);
CREATE TABLE original(
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, session INTEGER NOT NULL REFERENCES session(id),
        wire TEXT NOT NULL, place INTEGER NOT NULL, start INTEGER NOT NULL, messages TEXT NOT NULL) STRICT;
CREATE TABLE decision(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        exchange INTEGER NOT NULL REFERENCES exchange(seq), k INTEGER NOT NULL, view TEXT NOT NULL, rung TEXT NOT NULL,
        epoch INTEGER REFERENCES epoch(seq), pressure TEXT NOT NULL, reason TEXT NOT NULL, tokens_client INTEGER,
        tokens_upstream INTEGER, usable INTEGER NOT NULL, owed REAL NOT NULL, saving REAL,
        UNIQUE(exchange, k)) STRICT;
CREATE INDEX decision_view ON decision(session, view);
CREATE TABLE pin(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        node BLOB NOT NULL, is_on INTEGER NOT NULL, at_ms INTEGER NOT NULL) STRICT;
CREATE INDEX pin_session ON pin(session);
CREATE TRIGGER epoch_keep BEFORE UPDATE ON epoch BEGIN SELECT RAISE(ABORT, 'epoch is append-only'); END;
CREATE TRIGGER epoch_hold BEFORE DELETE ON epoch  BEGIN SELECT RAISE(ABORT, 'epoch is append-only'); END;
CREATE TRIGGER epoch_once BEFORE INSERT ON epoch WHEN EXISTS (SELECT 1 FROM epoch WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM epoch WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'epoch is append-only'); END;
CREATE TRIGGER original_keep BEFORE UPDATE ON original BEGIN SELECT RAISE(ABORT, 'original is append-only'); END;
CREATE TRIGGER original_hold BEFORE DELETE ON original  BEGIN SELECT RAISE(ABORT, 'original is append-only'); END;
CREATE TRIGGER original_once BEFORE INSERT ON original WHEN EXISTS (SELECT 1 FROM original WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM original WHERE name = NEW.name) BEGIN SELECT RAISE(ABORT, 'original is append-only'); END;
CREATE TRIGGER decision_keep BEFORE UPDATE ON decision BEGIN SELECT RAISE(ABORT, 'decision is append-only'); END;
CREATE TRIGGER decision_hold BEFORE DELETE ON decision  BEGIN SELECT RAISE(ABORT, 'decision is append-only'); END;
CREATE TRIGGER decision_once BEFORE INSERT ON decision WHEN EXISTS (SELECT 1 FROM decision WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM decision WHERE exchange = NEW.exchange AND k = NEW.k) BEGIN SELECT RAISE(ABORT, 'decision is append-only'); END;
CREATE TRIGGER pin_keep BEFORE UPDATE ON pin BEGIN SELECT RAISE(ABORT, 'pin is append-only'); END;
CREATE TRIGGER pin_hold BEFORE DELETE ON pin  BEGIN SELECT RAISE(ABORT, 'pin is append-only'); END;
CREATE TRIGGER pin_once BEFORE INSERT ON pin WHEN EXISTS (SELECT 1 FROM pin WHERE seq = NEW.seq) BEGIN SELECT RAISE(ABORT, 'pin is append-only'); END;

-- m004_summaries
CREATE TABLE summary(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        text INTEGER NOT NULL, notes INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, wire TEXT NOT NULL,
        start INTEGER NOT NULL, stop INTEGER NOT NULL, last BLOB NOT NULL, kind TEXT NOT NULL, level INTEGER NOT NULL,
        is_provisional INTEGER NOT NULL, tokens INTEGER NOT NULL, covered INTEGER NOT NULL, made_ms INTEGER NOT NULL,
        exchange INTEGER REFERENCES exchange(seq), model TEXT NOT NULL, calls TEXT NOT NULL, messages TEXT NOT NULL,
        digest BLOB NOT NULL) STRICT;
CREATE INDEX summary_session ON summary(session);
CREATE TABLE summary_edge(
        summary INTEGER NOT NULL, relation TEXT NOT NULL, i INTEGER NOT NULL, other INTEGER NOT NULL,
        PRIMARY KEY(summary, relation, i)) STRICT, WITHOUT ROWID;
CREATE INDEX exchange_auxiliary ON exchange(session, opened_ms) WHERE kind = 'auxiliary';
CREATE TABLE lease(key TEXT PRIMARY KEY, owner TEXT NOT NULL, until_ms INTEGER NOT NULL) STRICT;
CREATE TRIGGER summary_keep BEFORE UPDATE ON summary BEGIN SELECT RAISE(ABORT, 'summary is append-only'); END;
CREATE TRIGGER summary_hold BEFORE DELETE ON summary  BEGIN SELECT RAISE(ABORT, 'summary is append-only'); END;
CREATE TRIGGER summary_once BEFORE INSERT ON summary WHEN EXISTS (SELECT 1 FROM summary WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM summary WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'summary is append-only'); END;
CREATE TRIGGER summary_edge_keep BEFORE UPDATE ON summary_edge BEGIN SELECT RAISE(ABORT, 'summary_edge is append-only'); END;
CREATE TRIGGER summary_edge_hold BEFORE DELETE ON summary_edge  BEGIN SELECT RAISE(ABORT, 'summary_edge is append-only'); END;
CREATE TRIGGER summary_edge_once BEFORE INSERT ON summary_edge WHEN EXISTS (SELECT 1 FROM summary_edge WHERE summary = NEW.summary AND relation = NEW.relation AND i = NEW.i) BEGIN SELECT RAISE(ABORT, 'summary_edge is append-only'); END;

-- m005_tallies

-- m006_cache_usage
ALTER TABLE step ADD COLUMN layers BLOB;
ALTER TABLE decision ADD COLUMN client_read INTEGER;
ALTER TABLE decision ADD COLUMN sent_read INTEGER;

-- m007_recalled
ALTER TABLE epoch ADD COLUMN tool BLOB;
CREATE TABLE recalled(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        exchange INTEGER NOT NULL UNIQUE REFERENCES exchange(seq), view TEXT NOT NULL,
        epoch INTEGER NOT NULL REFERENCES epoch(seq), node BLOB NOT NULL, count INTEGER NOT NULL,
        tokens INTEGER NOT NULL, rounds INTEGER NOT NULL, rounds_digest BLOB NOT NULL) STRICT;
CREATE INDEX recalled_session ON recalled(session);
CREATE TRIGGER recalled_keep BEFORE UPDATE ON recalled BEGIN SELECT RAISE(ABORT, 'recalled is append-only'); END;
CREATE TRIGGER recalled_hold BEFORE DELETE ON recalled  BEGIN SELECT RAISE(ABORT, 'recalled is append-only'); END;
CREATE TRIGGER recalled_once BEFORE INSERT ON recalled WHEN EXISTS (SELECT 1 FROM recalled WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM recalled WHERE exchange = NEW.exchange) BEGIN SELECT RAISE(ABORT, 'recalled is append-only'); END;

-- m008_memory
CREATE TABLE memory(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        kind TEXT NOT NULL, item TEXT NOT NULL, at_ms INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL,
        last BLOB NOT NULL, content INTEGER, digest BLOB) STRICT;
CREATE INDEX memory_session ON memory(session);
CREATE TRIGGER memory_keep BEFORE UPDATE ON memory BEGIN SELECT RAISE(ABORT, 'memory is append-only'); END;
CREATE TRIGGER memory_hold BEFORE DELETE ON memory  BEGIN SELECT RAISE(ABORT, 'memory is append-only'); END;
CREATE TRIGGER memory_once BEFORE INSERT ON memory WHEN EXISTS (SELECT 1 FROM memory WHERE seq = NEW.seq) BEGIN SELECT RAISE(ABORT, 'memory is append-only'); END;

-- m009_held
CREATE TABLE held(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, envelope INTEGER NOT NULL,
        exchange INTEGER NOT NULL UNIQUE REFERENCES exchange(seq), history TEXT NOT NULL, key TEXT NOT NULL,
        digest BLOB NOT NULL, tip BLOB NOT NULL, size INTEGER NOT NULL, whole BLOB NOT NULL) STRICT;
CREATE TABLE source(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        exchange INTEGER NOT NULL UNIQUE REFERENCES exchange(seq), node BLOB NOT NULL, kind TEXT NOT NULL) STRICT;
CREATE INDEX source_session ON source(session);
CREATE TRIGGER held_keep BEFORE UPDATE ON held BEGIN SELECT RAISE(ABORT, 'held is append-only'); END;
CREATE TRIGGER held_hold BEFORE DELETE ON held  BEGIN SELECT RAISE(ABORT, 'held is append-only'); END;
CREATE TRIGGER held_once BEFORE INSERT ON held WHEN EXISTS (SELECT 1 FROM held WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM held WHERE exchange = NEW.exchange) BEGIN SELECT RAISE(ABORT, 'held is append-only'); END;
CREATE TRIGGER source_keep BEFORE UPDATE ON source BEGIN SELECT RAISE(ABORT, 'source is append-only'); END;
CREATE TRIGGER source_hold BEFORE DELETE ON source  BEGIN SELECT RAISE(ABORT, 'source is append-only'); END;
CREATE TRIGGER source_once BEFORE INSERT ON source WHEN EXISTS (SELECT 1 FROM source WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM source WHERE exchange = NEW.exchange) BEGIN SELECT RAISE(ABORT, 'source is append-only'); END;

-- m010_bills
CREATE TABLE bill(
        session INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL, exchange INTEGER NOT NULL,
        at_ms INTEGER NOT NULL, kind TEXT NOT NULL, mode TEXT NOT NULL, upstream TEXT NOT NULL, model TEXT NOT NULL,
        view TEXT NOT NULL, rung TEXT NOT NULL, is_held INTEGER NOT NULL, epoch INTEGER, status INTEGER,
        completeness TEXT NOT NULL, is_side INTEGER NOT NULL, is_last INTEGER NOT NULL, is_end INTEGER NOT NULL,
        input INTEGER, output INTEGER, read INTEGER, written INTEGER, client INTEGER, sent INTEGER,
        usable INTEGER NOT NULL, saving REAL, own_input INTEGER, own_read INTEGER, own_written INTEGER,
        paid_read INTEGER, first_byte_ms REAL, total_ms REAL,
        PRIMARY KEY(session, n, k)) STRICT, WITHOUT ROWID;
CREATE TABLE tally(
        session INTEGER NOT NULL, day INTEGER NOT NULL, upstream TEXT NOT NULL, model TEXT NOT NULL, share
        INTEGER NOT NULL, tier INTEGER NOT NULL, own_tier INTEGER NOT NULL, rounds INTEGER NOT NULL, errors
        INTEGER NOT NULL, ends INTEGER NOT NULL, plans INTEGER NOT NULL, held INTEGER NOT NULL, counted INTEGER
        NOT NULL, client INTEGER NOT NULL, sent INTEGER NOT NULL, told INTEGER NOT NULL, fresh INTEGER NOT NULL,
        output INTEGER NOT NULL, read INTEGER NOT NULL, written INTEGER NOT NULL, own_fresh INTEGER NOT NULL,
        own_read INTEGER NOT NULL, own_written INTEGER NOT NULL, paid_fresh INTEGER NOT NULL, paid_read INTEGER
        NOT NULL, saving REAL NOT NULL, largest INTEGER NOT NULL, largest_own INTEGER NOT NULL, ended_ms INTEGER
        NOT NULL,
        PRIMARY KEY(session, day, upstream, model, share, tier, own_tier)) STRICT, WITHOUT ROWID;

-- m011_erased
CREATE TABLE erased(
        seq INTEGER PRIMARY KEY, seal BLOB NOT NULL, session INTEGER NOT NULL REFERENCES session(id),
        cause TEXT NOT NULL, at_ms INTEGER NOT NULL, through INTEGER NOT NULL, until INTEGER NOT NULL,
        payloads INTEGER NOT NULL, bytes INTEGER NOT NULL, digest BLOB NOT NULL) STRICT;
CREATE INDEX erased_session ON erased(session);
CREATE INDEX erasure_scope ON erasure(scope);
CREATE TRIGGER erased_keep BEFORE UPDATE ON erased BEGIN SELECT RAISE(ABORT, 'erased is append-only'); END;
CREATE TRIGGER erased_hold BEFORE DELETE ON erased  BEGIN SELECT RAISE(ABORT, 'erased is append-only'); END;
CREATE TRIGGER erased_once BEFORE INSERT ON erased WHEN EXISTS (SELECT 1 FROM erased WHERE seq = NEW.seq) BEGIN SELECT RAISE(ABORT, 'erased is append-only'); END;

-- m012_overhead
ALTER TABLE outcome ADD COLUMN overhead_ms REAL;
ALTER TABLE bill ADD COLUMN overhead_ms REAL;

-- m013_remains
ALTER TABLE erased ADD COLUMN remains BLOB NOT NULL DEFAULT x'';
DROP TRIGGER erased_keep;
CREATE TRIGGER erased_keep BEFORE UPDATE ON erased WHEN NEW.remains <> x'' OR NEW.seq IS NOT OLD.seq OR NEW.seal IS NOT OLD.seal OR NEW.session IS NOT OLD.session OR NEW.cause IS NOT OLD.cause OR NEW.at_ms IS NOT OLD.at_ms OR NEW.through IS NOT OLD.through OR NEW.until IS NOT OLD.until OR NEW.payloads IS NOT OLD.payloads OR NEW.bytes IS NOT OLD.bytes OR NEW.digest IS NOT OLD.digest BEGIN SELECT RAISE(ABORT, 'erased is append-only'); END;
