"""What is said of SQL before Spark starts."""

from __future__ import annotations

from contextlib import closing, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.opening import open_backend, open_node
from router.model import TopicInfo, TopicName
from router.pipelines.checks import check_folders, check_sql, check_topics
from router.pipelines.reading import DeclarationError
from router.pipelines.run import check_declared
from router.settings import load
from tests.unit.pipelines.declared import GOOD, is_at, read


@pytest.mark.parametrize(
    ("old", "new", "line", "there", "words"),
    [
        (
            "amount * 2",
            "amont * 2",
            14,
            "amont",
            "there is no column 'amont'; did you mean amount?",
        ),
        (
            "FROM records\n",
            "FROM record\n",
            15,
            "record",
            "there is no view 'record'; did you mean records?",
        ),
        ("FROM records\n", "FRM records\n", 15, "FRM", "bad SQL near 'FRM'"),
        ("SELECT id", "DELETE id", 14, "2", "step large: "),
        ('["twice"]', '["twyce"]', 27, "[", "there is no column 'twyce'; did you mean twice?"),
        (
            "amount * 2",
            "upperr(id)",
            14,
            "upperr",
            "there is no function 'upperr'; did you mean upper?",
        ),
        ("count(*) AS n", "cuont(*) AS n", 20, "cuont", "there is no function 'cuont'"),
        ('mode = "update"\n', "", 20, "1", "step minutes: the aggregate has no watermark"),
        ("amount DOUBLE", "amount DOUBLE(", 8, "(", "DOUBLE has no length"),
        (
            "amount DOUBLE",
            "_topic STRING",
            8,
            '"id BIGINT, customer STRUCT<name: STRING>, _topic STRING"',
            "router's own",
        ),
        ("amount DOUBLE", "amount DOUBEL", 8, "DOUBEL", "no type DOUBEL; did you mean double?"),
        ("amount DOUBLE", "amount TEXT", 8, "TEXT", "no type TEXT: write STRING"),
        ("name: STRING>", "name: STRING, ok BOOL>", 8, "BOOL", "no type BOOL: write BOOLEAN"),
        ("amount DOUBLE", "amount ARRAY<MAP<STRING, JSON>>", 8, "JSON", "no type JSON"),
        ("amount DOUBLE", "ID DOUBLE", 8, "ID", "twice"),
        ("amount DOUBLE", "amount", 8, "amount", "and amount is no name and type"),
        ("id BIGINT", "id: BIGINT", 8, "id", "name STRING, and id is no name and type"),
        ("amount DOUBLE", "amount DOUBLE) x", 8, ") x", "'TEXT' or a comma, not )"),
        ("amount DOUBLE", "amount DOUBLE> x", 8, "> x", "with nothing behind"),
        ("amount DOUBLE", "amount DOUBLE,", 8, ',"', "nothing follows a comma"),
        ("amount DOUBLE", ", amount DOUBLE", 8, ", , amount", "nothing follows a comma"),
        ("name: STRING>", "name: STRING,>", 8, ",>", "nothing follows a comma"),
        ("id BIGINT, ", ", id BIGINT, ", 8, ", id", "a name is needed, and not ,"),
        ("BIGINT, customer", "BIGINT customer", 8, "customer", "behind BIGINT comes NOT NULL"),
        ("amount DOUBLE", "amount DOUBLE PRIMARY KEY", 8, "PRIMARY", "comma, not PRIMARY"),
        ("amount DOUBLE", "amount DOUBLE DEFAULT 1", 8, "DEFAULT", "comma, not DEFAULT"),
        ("amount DOUBLE", "amount DOUBLE COMMENT x", 8, "x", "a comment is text in quotes"),
        ("amount DOUBLE", "amount INT(11)", 8, "(11", "INT has no length: write INT alone"),
        ("amount DOUBLE", "amount DECIMAL(40, 2)", 8, "DECIMAL", "at most 38 digits"),
        ("amount DOUBLE", "amount DECIMAL(5, 7)", 8, "DECIMAL", "no more are behind the point"),
        ("amount DOUBLE", "amount DECIMAL(5, 2, 1)", 8, "DECIMAL", "0 to 2 numbers"),
        ("amount DOUBLE", "amount VARCHAR", 8, "VARCHAR", "has 1 numbers in parentheses"),
        ("amount DOUBLE", "amount ARRAY", 8, '"', "written ARRAY<TYPE>, and here is its end"),
        ("amount DOUBLE", "amount MAP<STRING>", 8, '>"', "written MAP<TYPE, TYPE>"),
        ("amount DOUBLE", "amount STRUCT", 8, '"', "STRUCT<NAME: TYPE, …>, and here is its end"),
        ("amount DOUBLE", "i INTERVAL DAY TO YEAR", 8, "YEAR", "no INTERVAL ends with YEAR"),
        ("amount DOUBLE", "t TIMESTAMP WITH TIME ZONE", 8, "WITH", "a comma, not WITH"),
        ("amount DOUBLE", "order-id INT", 8, "order", "write `order…` if more belongs"),
        ("amount DOUBLE", "'amount' DOUBLE", 8, "'", "a name stands in backquotes"),
        ("amount DOUBLE", "1e5 DOUBLE", 8, "1e5", "a number: write `1e5`"),
    ],
)
def test_bad_sql_is_refused_with_its_place(
    old: str, new: str, line: int, there: str, words: str
) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    with pytest.raises(DeclarationError) as caught:
        check_sql(read(text))
    is_at(text, str(caught.value), line, there)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM records",
        "SELECT window(_publish_time, '1 minute').start s, count(*) c FROM records"
        " GROUP BY window(_publish_time, '1 minute')",
        "SELECT ID, Customer.Name FROM Records WHERE AMOUNT > 1",
        "WITH a AS (SELECT id AS x FROM records) SELECT x FROM a",
        "SELECT r.id FROM records r JOIN records s ON r.id = s.id",
        "SELECT id, e FROM records LATERAL VIEW explode(array(1, 2)) t AS e",
        "SELECT explode(array(id)) AS e FROM records",
        "SELECT transform(array(id), x -> x + 1) AS t FROM records",
        "SELECT d.a FROM records JOIN delta.`/tables/d` d ON d.a = records.id",
        "SELECT * FROM (SELECT id AS z FROM records) q WHERE q.z > 1",
        "SELECT id FROM records UNION ALL SELECT amount FROM records",
        "SELECT element_at(_properties, 'a') AS a, _properties['b'] AS b FROM records",
        "SELECT max_by(amount, _index) AS s, approx_count_distinct(amount) AS n FROM records",
        "SELECT DISTINCT id FROM records",
        "SELECT /*+ BROADCAST(r) */ r.id FROM records r",
        "SELECT window_time(window) AS t, count(*) AS n FROM records"
        " GROUP BY window(_publish_time, '1 minute')",
        "SELECT id AS i, customer.name, current_date, count(*) AS n FROM records"
        " GROUP BY i, customer",
        "SELECT id, amount FROM records GROUP BY ALL",
        "SELECT id, amount, count(*) AS n FROM records GROUP BY ROLLUP(id, amount)",
        "SELECT id, amount FROM records GROUP BY 1, 2",
        "SELECT r.id, (SELECT r.id) AS z, count(*) AS n FROM records AS r GROUP BY r.id",
        "SELECT max(amount) AS m, amount * 2 AS n FROM records GROUP BY amount",
        "SELECT id AS amount FROM records WHERE amount > 1",
        "SELECT size(array(id)) AS s FROM records WHERE size(array(id)) > 1 HAVING count(*) > 1",
        "SELECT id, amount FROM records UNION ALL SELECT * FROM (SELECT id, amount FROM records) q",
        "SELECT id AS x, x + 1 AS y FROM records",
        "SELECT cast(map('a', (id)) AS MAP<STRING, DECIMAL(9, 2)>) AS text FROM records",
        "SELECT id AS x, count(*) AS n FROM records GROUP BY x HAVING x > 1 AND n > 2",
        "SELECT cast(CASE WHEN id = 1 THEN 'as' ELSE 'b' END AS STRING) AS x FROM records",
        "SELECT cast(`as` AS INT) AS x FROM (SELECT id AS `as` FROM records) q",
        "SELECT cast(named_struct('as', id) AS STRUCT<as: INT>) AS x FROM records",
        "SELECT json_tuple(_key, 'a', 'b') FROM records UNION ALL SELECT _key, _key FROM records",
        "SELECT inline_outer(array(struct(id, amount))) FROM records"
        " UNION ALL SELECT id, amount FROM records",
        "SELECT c0 FROM (SELECT json_tuple(_key, 'a', 'b') FROM records) q",
        "SELECT abs(id) AS id FROM records WHERE id > 0"
        " UNION ALL SELECT k AS id FROM (SELECT amount AS k, k + 1 AS id FROM records) q",
        "WITH a AS (SELECT abs(z) AS z FROM (SELECT id AS z FROM records) q WHERE z > 1),"
        " b AS (SELECT amount AS z, z + 1 AS y FROM records) SELECT a.z, b.y FROM a JOIN b"
        " ON a.z = b.z",
        "SELECT named_struct('a', id) AS s, s.a FROM records",
        "SELECT cast(id AS STRING COLLATE UTF8_LCASE) AS s FROM records",
    ],
)
def test_good_sql_of_spark_passes(sql: str) -> None:
    step = f'[[step]]\nname = "one"\nsql = """\n{sql}\n"""\n'
    head, _, _ = GOOD.partition("[[step]]")
    check_sql(read(head + step + '[[sink]]\nkind = "topic"\ntopic = "t"\nmode = "update"\n'))


@pytest.mark.parametrize(
    ("sql", "line", "there", "words"),
    [
        ("SELECT id,\n  amount,\nFROM records", 14, ",", "nothing follows a comma"),
        ("SELECT id,\n  , amount FROM records", 14, ",", "nothing is before a comma"),
        ("SELECT\n, id FROM records", 14, ",", "nothing is before a comma"),
        ("SELECT id\nFROM records, WHERE id > 1", 14, ", WHERE", "nothing follows a comma"),
        ("SELECT id, amount\nFROM records GROUP BY ALL,", 14, ",", "nothing follows a comma"),
        ("SELECT amount / 2 AS half\nFROM records\nWHERE half > 1", 15, "half", "the alias 'half'"),
        (
            "SELECT id\nFROM records\nWHERE count(*) > id GROUP BY id",
            15,
            "count",
            "COUNT(*) is of groups",
        ),
        (
            "SELECT id,\n amount, count(*) AS n\nFROM records GROUP BY id",
            14,
            "amount",
            "any_value(amount)",
        ),
        (
            "SELECT amount, window.start\nFROM records GROUP BY window(_publish_time, '1 minute')",
            13,
            "amount",
            "GROUP BY lacks amount",
        ),
        (
            "SELECT id, amount FROM records\nUNION ALL\nSELECT id FROM records",
            15,
            "id",
            "of 2 and 1",
        ),
        ("SELECT id\nFROM records r\nJOIN records s ON r.id = s.id", 13, "id", "or more than one"),
        ("SELECT id FROM (SELECT amount FROM records) q", 13, "id", "no view that it reads"),
        (
            "SELECT id,\n  cast(array(id) AS TEXT) AS t\nFROM records",
            14,
            "TEXT",
            "TEXT: write STRING",
        ),
        (
            "SELECT try_cast(cast(id AS INT) AS DATETIME) AS t FROM records",
            13,
            "DATETIME",
            "TIMESTAMP",
        ),
        ("SELECT id FROM one", 13, "one", "there is no view 'one'"),
        ("SELECT id\nFROM two", 14, "two", "the step 'two' stands behind it"),
    ],
)
def test_select_that_spark_refuses_is_refused_with_its_place(
    sql: str, line: int, there: str, words: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        append(steps := {"a": sql, "two": "SELECT id FROM records"})
    is_at(appended(steps), str(caught.value), line, there)
    assert words in str(caught.value)


def test_types_of_spark_are_taken_whatever_columns_are_called() -> None:
    schema = (
        "`text json` INT NOT NULL COMMENT ',', `<` INT, `:,` STRUCT<`(`: INT, `>` INT>,"
        " text BIGINT, amount DECIMAL(9, 2),"
        " e ARRAY<ARRAY<STRUCT<x INT, json: MAP<STRING, ARRAY<INT>>, z DATE>>>, id INT,"
        " customer STRUCT<name: STRING COMMENT 'c', bool BOOLEAN>, t TIMESTAMP WITHOUT TIME ZONE,"
        " i INTERVAL DAY TO SECOND, v VARCHAR(5), like INT, unique STRING, select DATE,"
        " `a``b` STRING COLLATE UTF8_LCASE, 1a INTERVAL, g GEOMETRY(4326), d DECIMAL(0, 0) -- one"
    )
    good = "id BIGINT, customer STRUCT<name: STRING>, amount DOUBLE"
    assert good in GOOD
    check_sql(read(GOOD.replace(good, schema)))


def test_schema_of_a_table_is_refused_at_its_line_and_not_as_that_of_the_source() -> None:
    table = '[[table]]\nname = "t"\npath = "p"\nformat = "json"\nschema = "id INTT"\n'
    with pytest.raises(DeclarationError, match=r":42:14: the schema: Spark has no type INTT"):
        check_sql(read(GOOD + table))


MARKED = 'watermark = { column = "_publish_time", delay = "1 minute" }'
AGGREGATE = "SELECT id, count(*) AS n FROM records GROUP BY id, _publish_time"


def append(steps: dict[str, str], source: str = "", end: str = "") -> None:
    """Check steps whose last one goes to a sink in append mode."""
    check_sql(read(appended(steps, source, end)))


def appended(steps: dict[str, str], source: str = "", end: str = "") -> str:
    """Return the declaration of such steps."""
    head = GOOD.partition("[[step]]")[0].rstrip() + f"\n{source}\n"
    tables = [f'[[step]]\nname = "{n}"\nsql = """\n{s}\n"""\n{end}' for n, s in steps.items()]
    return head + "".join(tables) + '[[sink]]\nkind = "parquet"\npath = "out"\n'


@pytest.mark.parametrize(
    ("steps", "line", "there"),
    [
        ({"a": AGGREGATE}, 13, "id"),
        ({"a": "SELECT\n  count(*) AS n\nFROM records"}, 14, "count"),
        ({"a": "SELECT id FROM records", "b": "SELECT max(id) AS m FROM a"}, 18, "max"),
        ({"a": AGGREGATE, "b": "SELECT * FROM a"}, 13, "id"),
        ({"a": "WITH r AS (SELECT * FROM records)\nSELECT id FROM r GROUP BY id"}, 14, "id"),
        ({"a": "SELECT n FROM (SELECT count(*) AS n FROM records) q"}, 13, "count"),
        ({"a": "SELECT\n  DISTINCT id FROM records"}, 14, "id"),
        (
            {
                "a": "SELECT id FROM records",
                "b": "SELECT id FROM a\nUNION\nSELECT id FROM records",
            },
            18,
            "id",
        ),
    ],
)
def test_aggregate_without_a_watermark_is_refused_with_its_place(
    steps: dict[str, str], line: int, there: str
) -> None:
    with pytest.raises(DeclarationError, match="the aggregate has no watermark") as caught:
        append(steps)
    is_at(appended(steps), str(caught.value), line, there)
    append(steps, MARKED)


@pytest.mark.parametrize(
    "steps",
    [
        {"a": "SELECT id, size(c) AS n FROM (SELECT id, array(id) AS c FROM records) q"},
        {
            "unused": "SELECT row_number() OVER (ORDER BY id) AS n FROM records",
            "b": "SELECT id FROM records",
        },
        {
            "a": "SELECT r.id FROM records r JOIN (SELECT x, row_number() OVER (ORDER BY x) AS n"
            " FROM delta.`/tables/d`) d ON d.x = r.id"
        },
        {"a": "SELECT id FROM records WHERE id > (SELECT max(x) FROM delta.`/tables/d`)"},
        {
            "a": "SELECT r.id FROM records r JOIN"
            " (SELECT DISTINCT x FROM delta.`/tables/d`) d ON d.x = r.id"
        },
        {"unused": AGGREGATE, "b": "SELECT id FROM records"},
        {"a": "SELECT aggregate(array(id), 0, (x, y) -> x + y) AS s FROM records"},
        {
            "a": "SELECT r.id FROM records r JOIN"
            " (SELECT x, max(y) AS y FROM delta.`/tables/d` GROUP BY x) d ON d.x = r.id"
        },
    ],
)
def test_what_is_no_aggregate_of_the_stream_needs_no_watermark(steps: dict[str, str]) -> None:
    append(steps)


@pytest.mark.parametrize(
    ("sql", "line", "there", "words"),
    [
        ("SELECT id,\n row_number() OVER (ORDER BY _index) AS n FROM records", 14, "row", "max_by"),
        ("WITH r AS (SELECT sum(amount) OVER (ORDER BY id) AS s FROM records)\nSELECT s FROM r",
         13, "sum", "SUM(amount) OVER"),
        ("SELECT\ncount(DISTINCT id) AS n FROM records", 14, "count", "approx_count_distinct"),
        ("SELECT id FROM records\nORDER BY id", 14, "id", "leave ORDER BY away"),
        ("SELECT id FROM records WHERE id >\n(SELECT avg(id) FROM records)", 14, "avg", "join it"),
        ("SELECT id FROM records\nWHERE id IN (SELECT id FROM records)", 14, "id", "join it"),
        ("SELECT id FROM delta.`/d`\nWHERE NOT EXISTS (SELECT 1 FROM records)", 14, "1", "join it"),
        ("SELECT id,\n(SELECT max(id) FROM records) AS m FROM records", 14, "max", "join it"),
    ],
)  # fmt: skip
def test_what_no_stream_has_is_refused_with_its_place(
    sql: str, line: int, there: str, words: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        append({"a": sql}, MARKED)
    is_at(appended({"a": sql}, MARKED), str(caught.value), line, there)
    assert ": step a: " in str(caught.value)
    assert words in str(caught.value)


TABLE = '[[table]]\nname = "d"\npath = "p"\nformat = "json"\nschema = "id BIGINT"\n'
OTHERS = '[[stream]]\nname = "others"\ntopics = ["o"]\nformat = "json"\nschema = "id BIGINT"\n'
TWO = "SELECT r.id FROM records r {} JOIN others o ON o.id = r.id"
ONE = "SELECT r.id FROM {} JOIN {} ON d.id = r.id"
MINUTES = "window(_publish_time, '1 minute')"


@pytest.mark.parametrize(
    ("sql", "words", "modes"),
    [
        ("SELECT id FROM records EXCEPT SELECT id FROM others", "EXCEPT takes", "au"),
        ("SELECT id FROM d EXCEPT ALL SELECT id FROM others", "EXCEPT takes", "au"),
        ("SELECT id FROM records MINUS SELECT id FROM others", "EXCEPT takes", "au"),
        ("WITH a AS (SELECT id FROM others) SELECT id FROM records EXCEPT SELECT id FROM a",
         "EXCEPT takes", "au"),
        ("SELECT id FROM records EXCEPT SELECT id FROM d", "", "au"),
        ("SELECT id FROM records INTERSECT SELECT id FROM d", "INTERSECT is", "au"),
        ("SELECT id FROM d INTERSECT ALL SELECT id FROM records", "INTERSECT is", "au"),
        ("SELECT id FROM records UNION ALL SELECT id FROM others", "", "au"),
        ("SELECT id FROM records UNION ALL SELECT id FROM d", "this side is no stream", "au"),
        ("SELECT 1 AS id UNION ALL SELECT id FROM records", "this side is no stream", "au"),
        ("SELECT id FROM records UNION ALL SELECT id FROM left_to_spark", "", "au"),
        ("SELECT id FROM records SORT BY id", "leave SORT BY away", "au"),
        ("SELECT id FROM records CLUSTER BY id", "leave CLUSTER BY away", "au"),
        ("SELECT id FROM records DISTRIBUTE BY id", "", "au"),
        ("SELECT id FROM records UNION ALL SELECT id FROM others ORDER BY id",
         "leave ORDER BY away", "au"),
        ("SELECT id, count(*) AS n FROM records GROUP BY id ORDER BY id", "", "c"),
        ("SELECT id FROM records OFFSET 5", "has no OFFSET", "au"),
        ("SELECT id FROM records LIMIT 5", "", "a"),
        ("SELECT id FROM records LIMIT 5", "no LIMIT for the sink", "u"),
        ("SELECT id FROM records LIMIT ALL", "", "u"),
        ("SELECT id FROM records TABLESAMPLE (10 PERCENT)", "no sample", "au"),
        ("SELECT id FROM records TABLESAMPLE (5 ROWS)", "", "a"),
        ("SELECT id FROM records TABLESAMPLE (5 ROWS)", "no sample", "u"),
        ("SELECT r.id FROM records r JOIN d TABLESAMPLE (5 PERCENT) ON d.id = r.id", "", "au"),
        ("SELECT r.id FROM records r JOIN (SELECT id FROM d ORDER BY id LIMIT 3) q"
         " ON q.id = r.id", "", "au"),
        (TWO.format(""), "", "au"),
        (TWO.format("LEFT"), "needs a watermark on both", "au"),
        (TWO.format("LEFT SEMI"), "needs a watermark on both", "au"),
        (TWO.format("FULL OUTER"), "needs a watermark on both", "au"),
        (TWO.format("LEFT ANTI"), "no stream on its right", "au"),
        (ONE.format("records r LEFT", "d"), "", "au"),
        (ONE.format("records r LEFT ANTI", "d"), "", "au"),
        (ONE.format("records r RIGHT", "d"), "a RIGHT JOIN of a stream and a table", "au"),
        (ONE.format("records r FULL", "d"), "a FULL JOIN of a stream and a table", "au"),
        (ONE.format("d LEFT", "records r"), "a LEFT JOIN of a stream and a table", "au"),
        (ONE.format("d LEFT SEMI", "records r"), "a LEFT SEMI JOIN of a stream", "au"),
        (ONE.format("d RIGHT", "records r"), "", "au"),
        ("SELECT r.id FROM records r RIGHT JOIN left_to_spark d ON d.id = r.id", "", "au"),
        ("SELECT monotonically_increasing_id() AS m FROM records", "_partition and _index", "au"),
        ("SELECT n, count(*) AS m FROM (SELECT id, count(*) AS n FROM records GROUP BY id) q"
         " GROUP BY n", "groups of groups", "uc"),
        ("SELECT count(*) AS n FROM (SELECT DISTINCT id FROM records) q", "of groups", "uc"),
        ("SELECT session_window(_publish_time, '5 minutes') AS w, count(*) AS n FROM records"
         " GROUP BY 1", "modes append and complete", "u"),
        ("SELECT session_window(_publish_time, '5 minutes') AS w, count(*) AS n FROM records"
         " GROUP BY 1", "", "c"),
        ("SELECT id FROM records", "mode complete is of groups", "c"),
        ("SELECT kurtosis(id) AS k FROM records", "", "c"),
        ("SELECT id FROM d", "no stream comes to it", "auc"),
    ],
)  # fmt: skip
def test_shapes_that_streams_cannot_have_are_refused_and_no_others(
    sql: str, words: str, modes: str
) -> None:
    text = appended({"a": sql})
    left = '[[step]]\nname = "left_to_spark"\nsql = "SELECT id FROM d"\nchecked = false\n'
    for mode in (name for name in ("append", "update", "complete") if name[0] in modes):
        sink = f'kind = "topic"\ntopic = "t"\nmode = "{mode}"'
        changed = text.replace('kind = "parquet"\npath = "out"', sink)
        changed = changed.replace("[[step]]", f"{OTHERS}{TABLE}{left}[[step]]", 1)
        with pytest.raises(DeclarationError, match=words) if words else nullcontext():
            check_sql(read(changed))


@pytest.mark.parametrize(
    ("sql", "there"),
    [
        ("SELECT id, count(*) AS n\nFROM records GROUP BY id", "id"),
        ("SELECT id AS k, count(*) AS n\nFROM records\nGROUP BY k", "k"),
        (f"SELECT {MINUTES} AS w, count(*) AS n FROM records GROUP BY 1", ""),
        (f"SELECT count(*) AS n FROM records GROUP BY {MINUTES}, id", ""),
        ("SELECT _publish_time AS at, count(*) AS n FROM records GROUP BY at", ""),
        ("SELECT id AS _publish_time, 1 AS n FROM records GROUP BY _publish_time", ""),
        ("SELECT at, count(*) AS n FROM (SELECT _publish_time AS at FROM records) GROUP BY at", ""),
    ],
)
def test_groups_without_the_column_of_the_watermark_are_refused(sql: str, there: str) -> None:
    with pytest.raises(DeclarationError, match="GROUP BY lacks") if there else nullcontext():
        append({"a": sql}, MARKED)


def test_watermark_of_a_step_below_serves_an_aggregate() -> None:
    below = 'watermark = { column = "_publish_time", delay = "1 minute" }\n'
    append(
        {"a": "SELECT * FROM records", "b": "SELECT _publish_time, id FROM a GROUP BY ALL"},
        end=below,
    )


def test_functions_that_an_extension_may_bring_are_left_to_spark() -> None:
    text = GOOD.replace("amount * 2", "geo_near(id)")
    with pytest.raises(DeclarationError, match="no function 'geo_near'"):
        check_sql(read(text))
    check_sql(read(text.replace("[resources]", '[resources]\n"spark.sql.extensions" = "geo.Sql"')))


def test_step_that_is_not_checked_passes_whatever_it_says() -> None:
    check_sql(
        read(
            GOOD.replace("FROM records\n", "FRM !\n").replace(
                'name = "large"', 'name = "large"\nchecked = false'
            )
        )
    )


@pytest.mark.parametrize(
    ("checkpoint", "path", "around"),
    [
        ("t/ck", "t/", True),
        ("t", "t", True),
        ("s3a://b/t/ck", "s3a://b/t", True),
        ("t/_ck=1/orders", "t", True),
        ("t/_ck/orders", "t", False),
        ("t/state/.ck", "t", False),
        ("ck/x", "ck/xy", False),
        ("ck", "ck/table", False),
        ("", "t", False),
    ],
)
def test_table_is_not_around_what_its_log_does_not_name(
    checkpoint: str, path: str, around: bool
) -> None:
    text = GOOD.replace('checkpoint = "ck"', f'checkpoint = "{checkpoint}"')
    refused = pytest.raises(DeclarationError, match=r":26:8: .* is around ")
    with refused if around else nullcontext():
        check_folders(read(text.replace('path = "out"', f'path = "{path}"')))


def test_table_is_not_around_another_one() -> None:
    other = '[[sink]]\nname = "o"\nkind = "delta"\nfrom = "large"\npath = "out/other"\n'
    with pytest.raises(DeclarationError, match=r":26:8: the table out is around .*/out/other"):
        check_folders(read(GOOD + other))


def test_settings_of_spark_that_promises_rest_on_stay() -> None:
    zone = '[resources]\n"spark.sql.session.timeZone" = "{}"'
    check_declared(read(GOOD.replace("[resources]", zone.format("UTC"))))
    with pytest.raises(DeclarationError, match=r":37:\d+: .*timeZone is UTC in each pipeline"):
        check_declared(read(GOOD.replace("[resources]", zone.format("Europe/Paris"))))


def test_columns_that_come_with_the_data_are_left_to_spark() -> None:
    text = GOOD.replace('schema = "id BIGINT, customer STRUCT<name: STRING>, amount DOUBLE"\n', "")
    check_sql(read(text.replace("amount * 2", "nobody_knows * 2")))


def test_topic_sink_without_a_topic_needs_a_column() -> None:
    with pytest.raises(DeclarationError, match="in a column topic"):
        check_sql(read(GOOD.replace('topic = "minutes"\n', 'from = "large"\n')))


def test_table_may_be_partitioned_by_the_date_that_is_made_of_a_time() -> None:
    by_date = GOOD.replace('["twice"]', '["date"]')
    with pytest.raises(DeclarationError, match="there is no column 'date'"):
        check_sql(read(by_date))
    check_sql(read(by_date.replace('from = "large"', 'from = "records"')))
    check_sql(read(by_date.replace("SELECT id,", "SELECT _publish_time,")))


def test_watermark_needs_a_column_that_is_there() -> None:
    given = 'watermark = { column = "_publish_tim", delay = "1 minute" }'
    with pytest.raises(DeclarationError, match=r":9:13: .*did you mean _publish_time"):
        check_sql(read(GOOD.replace("\n\n[[step]]", f"\n{given}\n\n[[step]]", 1)))


@given(st.text(st.characters(codec="ascii"), max_size=80))
def test_any_sql_passes_or_is_refused_in_one_line(sql: str) -> None:
    text = GOOD.replace("       amount * 2 AS twice", sql.replace("\\", "").replace('"', ""))
    said = ""
    try:
        check_sql(read(text))
    except DeclarationError as error:
        said = str(error)
    assert "\n" not in said


def test_missing_topic_is_refused_with_the_nearest() -> None:
    settings = load(None, {}, {"backend.url": "memory"})
    node = open_node(settings)
    backend = open_backend(settings, node)
    try:
        backend.create_topic(TopicInfo(TopicName("public", "default", "order")), 5.0)
        with pytest.raises(
            DeclarationError, match=r":6:10: there is no topic 'orders'; did you mean"
        ):
            check_topics(read(), backend, settings)
        backend.create_topic(TopicInfo(TopicName("public", "default", "orders")), 5.0)
        check_topics(read(), backend, settings)
    finally:
        backend.close()
        node.close()


@pytest.mark.parametrize("source", ['topics = ["orders"]', 'pattern = "ord.*"'])
@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('topic = "minutes"', 'topic = "persistent://public/default/orders"', 31),
        ("[source]", 'dead_letters = "orders"\n\n[source]', 5),
    ],
)
def test_topic_that_the_source_reads_is_refused_for_a_sink(
    source: str, old: str, new: str, line: int
) -> None:
    settings = load(None, {}, {"backend.url": "memory"})
    text = GOOD.replace('topics = ["orders"]', source)
    with closing(open_node(settings)) as node, closing(open_backend(settings, node)) as backend:
        backend.create_topic(TopicInfo(TopicName("public", "default", "orders")), 5.0)
        check_topics(read(text), backend, settings)
        with pytest.raises(DeclarationError, match=rf":{line}:\d+: .* is read by the source"):
            check_topics(read(text.replace(old, new, 1)), backend, settings)
