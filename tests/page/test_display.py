"""The page in a real browser, with documents that have all that it can show."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect
from tests.page import documents
from tests.page.browser import DESKTOP, PHONE, Tab
from tests.runtime import samples

from levada.cli import formatting
from levada.printable import printable
from levada.runtime.report.access_token import AccessToken
from levada.runtime.report.http import ProgressServer
from levada.status import (
    CatchUpProgress,
    CatchUpState,
    CopyProgress,
    CutProgress,
    CutsProgress,
    History,
    ManifestProgress,
    Progress,
    PublicationProgress,
)
from levada.values import Lsn, QualifiedTable

Tabs = Callable[..., Tab]
HISTORY = "**/v1/history"


def rows(page: Page) -> list[str]:
    """Return the names of the tables that are listed."""
    return page.locator("#tables-body .name").all_text_contents()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(DESKTOP, "light", id="desktop-light"),
        pytest.param(DESKTOP, "dark", id="desktop-dark"),
        pytest.param(PHONE, "light", id="phone-light"),
        pytest.param(PHONE, "dark", id="phone-dark"),
    ],
)
def test_everybody_can_use_it(tab: Tabs, size: dict[str, int], scheme: str) -> None:
    """axe finds no violation of WCAG 2.2 AA, contrasts included, and nothing is wider than a phone."""
    with ProgressServer(documents.full) as server:
        page = tab(viewport=size, color_scheme=scheme, reduced_motion="reduce").open(server.address)
        expect(page.locator("#errors-list article")).to_have_count(3)
        page.locator("summary").first.click()
        levels = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        found = Axe().run(page, options={"runOnly": levels}).response["violations"]
        assert json.dumps([(v["id"], [n["html"] for n in v["nodes"]]) for v in found]) == "[]"
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate("getComputedStyle(document.getElementById('figures')).transitionDuration") == "0s"


@pytest.mark.nightly
def test_it_says_what_the_command_line_says(tab: Tabs) -> None:
    """Errors with code, reason, retry or solution. The guard, copies, notes and verifications."""
    with ProgressServer(documents.full) as server:
        page = tab().open(server.address)
        expect(page.get_by_role("heading", level=1)).to_have_text("shop")
        expect(page.locator("#state")).to_contain_text("Running")
        expect(page.locator("#summary")).to_contain_text("3/6 tables ready")
        expect(page.locator("#summary")).to_contain_text("does not catch up at this rate")
        expect(page.locator("#right .sentence")).to_have_text("1 table differs from the source")
        expect(page.locator("#done .sentence")).to_have_text("Does not catch up at this rate")
        expect(page.locator("#disk .sentence")).to_have_text("1 limit of the guard passed")
        parked, different, retried = page.locator("#errors-list article").all()
        assert "no_replica_identity" in parked.inner_text()
        assert "levada retry MANIFEST public.payments" in parked.inner_text()
        assert "lake_away" in retried.inner_text()
        assert "Attempt 3, retried at" in retried.inner_text()
        expect(retried.get_by_role("button")).to_have_count(0)
        assert "public.refunds\n" in different.inner_text()
        assert "It differs from the source in 2 keys at 0/FF" in different.inner_text()
        assert "levada verify MANIFEST --table public.refunds --repair" in different.inner_text()
        guard = page.locator("#guard-list").inner_text()
        assert "staged is 2.0 GiB" in guard
        assert "The limit of ParkSlowest is 1.0 GiB." in guard
        assert "orders is parked" in guard
        copies = page.locator("#copies-list").inner_text()
        assert "43.2% · 8,200,000 rows of about 1,000 · 100/s · 5.0s left" in copies
        notes = page.locator("#notes-list").inner_text()
        assert "public.stock: it has no key" in notes
        assert "spec.store (Restart)" in notes
        items = page.locator("#tables-body tr").filter(has_text="public.items").inner_text()
        assert "43.2%" in items
        assert "2 keys differ" in page.locator("#tables-body tr").filter(has_text="public.refunds").inner_text()
        assert "shop.carts_2 at the destination, suspended" in page.locator("#tables-body").inner_text()


ANSWERS: tuple[tuple[dict[str, Any], tuple[str, str, str]], ...] = (
    ({}, ("4.0 KiB of WAL retained", "The table is Ready", "0s behind at most")),
    ({"catch_up": CatchUpProgress(CatchUpState.CAUGHT_UP, 0.0)}, ("", "", "Caught up")),
    ({"catch_up": CatchUpProgress(CatchUpState.CATCHING_UP, 80.0)}, ("", "", "1m 20s to catch up")),
    ({"capture": samples.capture(connected=False)}, ("", "", "The replication stream is not open")),
    ({"slot": samples.slot(wal_status="extended")}, ("WAL is extended, 4.0 KiB retained", "", "")),
    ({"slot": samples.slot(retained_bytes=None, wal_status=None)}, ("No slot is known yet", "", "")),
    ({"state": "Failed", "error": samples.error()}, ("", "The pipeline has failed", "The pipeline is failed")),
)
"""Documents, and the sentences that answer the questions about the disk, the rows and the end. "" is not looked at."""


def test_each_question_has_an_answer(tab: Tabs) -> None:
    """The sentence names the worst of what is known."""
    document = samples.progress()
    with ProgressServer(lambda: document) as server:
        page = tab().page
        for changes, sentences in ANSWERS:
            document = samples.progress(at=datetime.now(UTC), **changes)
            page.goto(f"{server.address}/")
            page.locator("#figures").wait_for()
            for question, sentence in zip(("disk", "right", "done"), sentences, strict=True):
                shown = page.locator(f"#{question} .sentence").inner_text()
                assert shown == sentence or not sentence, changes


def test_names_are_texts(tab: Tabs) -> None:
    """No name becomes an element or a script, in a row, an error, a copy or a note. Control characters are visible."""
    hostile = [documents.table(100 + i, name) for i, name in enumerate(documents.HOSTILE)]
    with_errors = [
        documents.table(
            200 + i,
            name,
            schema=name,
            phase="Errored",
            note=name,
            destination_table=f"x.{name}2",
            error=samples.error(code="c", reason=name, solution=f"levada retry MANIFEST {name}"),
        )
        for i, name in enumerate(documents.HOSTILE)
    ]
    copied = [
        documents.table(300 + i, name, phase="DataSync", copy=samples.copying(note=name))
        for i, name in enumerate(documents.HOSTILE)
    ]
    with ProgressServer(lambda: documents.full(*hostile, *with_errors, *copied)) as server:
        page = tab().open(server.address)
        shown = rows(page)
        for name in documents.HOSTILE:
            assert shown.count(printable(f"public.{name}").replace("\n", "\\n")) == 2
        assert page.locator("img").count() == 1, "the mark in the head is the only picture"
        assert page.locator("body script").count() == 0
        reasons = page.locator("#errors-list .reason").all_text_contents()
        assert "<img src=x onerror=alert(1)>" in reasons
        page.fill("#filter-name", "<IMG")
        expect(page.locator("#tables-body tr")).to_have_count(3)
        assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
        page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.nightly
def test_commands_name_the_manifest_of_a_laptop(tab: Tabs) -> None:
    """The engine knows its path and its Secrets there. No part of a path is a pattern of a replacement."""
    words = "'/home/$& $1/pipeline.yaml' --secrets /home/s"
    document = replace(documents.full(), manifest=ManifestProgress(arguments=words))
    with ProgressServer(lambda: document) as server:
        page = tab().open(server.address)
        expect(page.locator("#errors-list")).to_contain_text(f"then: levada retry {words} public.payments")
        expect(page.locator("#errors-list")).to_contain_text(f"levada verify {words} --table public.refunds --repair")
        expect(page.locator("#manifest-hint")).to_be_hidden()


@pytest.mark.nightly
def test_tables_that_are_left_out_of_the_publication_are_errors(tab: Tabs) -> None:
    """They have no row, so the error is the only place where they are named."""
    left_out = samples.error(code="publication_incomplete", reason="publication p lacks public.theirs")
    with ProgressServer(lambda: replace(documents.full(), publication=PublicationProgress(left_out))) as server:
        page = tab().open(server.address)
        first = page.locator("#errors-list article").first
        expect(first).to_contain_text("Publication")
        expect(first).to_contain_text("publication p lacks public.theirs")


@pytest.mark.nightly
def test_commands_run_in_the_pod_of_a_driver(tab: Tabs) -> None:
    """They are complete where kubectl is: the variables of the pod have the options."""
    prefix = "kubectl -n data exec shop-driver-0 -c driver --"
    manifest = ManifestProgress(arguments="/etc/levada/pipeline.yaml", prefix=prefix)
    with ProgressServer(lambda: replace(documents.full(), manifest=manifest)) as server:
        opened = tab(permissions=["clipboard-read", "clipboard-write"])
        page = opened.open(server.address)
        page.get_by_role("button", name="Copy the command for public.payments").click()
        command = "levada retry /etc/levada/pipeline.yaml public.payments"
        page.wait_for_function(
            "text => navigator.clipboard.readText().then((copied) => copied === text)", arg=f"{prefix} {command}"
        )
        expect(page.locator("#manifest-hint")).to_be_hidden()


@pytest.mark.nightly
def test_a_command_is_copied(tab: Tabs) -> None:
    """The button copies the command without the words before it. Without a clipboard, it selects the text.

    A command with a control character has no button, since a terminal might run a part of it when it is pasted.
    """
    attack = samples.error(reason="a", solution="levada retry MANIFEST 'public.a\x03\nreboot\n'")
    bad = documents.table(70, "a\x03\nreboot\n", phase="Errored", error=attack)
    with ProgressServer(lambda: documents.full(bad)) as server:
        opened = tab(permissions=["clipboard-read", "clipboard-write"])
        page = opened.open(server.address)
        button = page.get_by_role("button", name="Copy the command for public.payments")
        button.click()
        expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "levada retry MANIFEST public.payments"
        expect(page.get_by_role("button", name="Copy the command for a")).to_have_count(0)
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        button.click()
        expect(button).to_have_text("Selected")
        assert "levada retry" in page.evaluate("getSelection().toString()")


@pytest.mark.nightly
def test_two_thousand_tables(tab: Tabs) -> None:
    """They are filtered and sorted, 200 at a time or all, and rows keep their focus when they move."""
    with ProgressServer(lambda: documents.many(2000)) as server:
        page = tab().open(server.address)
        expect(page.locator("#shown")).to_have_text("the first 200 of 2,000 tables")
        assert rows(page)[:2] == ["public.events_1000", "public.events_0000"], "what needs a person is first"
        page.get_by_role("button", name="Show all 2,000 tables").click()
        expect(page.locator("#tables-body tr")).to_have_count(2000)
        page.get_by_role("button", name="Behind").click()
        assert rows(page)[:2] == ["public.events_1999", "public.events_1998"]
        assert page.locator("#by-behind").get_attribute("aria-sort") == "descending"
        page.get_by_role("button", name="Behind").press("Enter")
        assert rows(page)[:1] == ["public.events_0000"]
        page.fill("#filter-name", "S_123")
        expect(page.locator("#shown")).to_have_text("10 of 2,000 tables")
        page.fill("#filter-name", "")
        page.select_option("#filter-phase", "Errored")
        expect(page.locator("#shown")).to_have_text("1 of 2,000 tables")
        assert rows(page) == ["public.events_1000"]


@pytest.mark.nightly
def test_by_keyboard(tab: Tabs) -> None:
    """Each control is reached by Tab, with a visible focus, in the order of the page."""
    with ProgressServer(documents.full) as server:
        page = tab().open(server.address)
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            at = page.evaluate(
                """() => {
                    const at = document.activeElement;
                    if (at === document.body) return null;
                    const shown = at.type === "radio" ? at.nextElementSibling : at;
                    return [at.id || at.textContent || at.name, getComputedStyle(shown).outlineStyle !== "none"];
                }"""
            )
            if at is None:
                break
            reached.append(at)
        assert [name for name, visible in reached if not visible] == []
        names = [name for name, _ in reached]
        for control in (
            "Skip to the tables",
            "Copy",
            "range",
            "filter-name",
            "filter-phase",
            "tables-scroll",
            "Behind",
        ):
            assert control in names, names
        page.get_by_role("link", name="Skip to the tables").press("Enter")
        assert page.evaluate("document.activeElement.id") == "tables"


def fulfill(body: str, route: Route) -> None:
    """Answer a request."""
    route.fulfill(body=body)


def history(*points: tuple[float, int | None]) -> History:
    """Return a history with these values of retained WAL, each some seconds ago."""
    now = datetime.now(UTC)
    values = tuple(value for _, value in points)
    return History(
        at=tuple(now - timedelta(seconds=ago) for ago, _ in points),
        seconds=(10,) * len(points),
        lag_bytes=values,
        retained_bytes=values,
        staged_bytes=values,
        lag_seconds=values,
        rows_per_second=values,
    )


@pytest.mark.nightly
def test_plots_are_read_aloud_and_show_gaps(tab: Tabs) -> None:
    """A plot is a picture with a text of its figures. Missing times and unknown values interrupt its line."""
    points = [(ago, 1 << 20) for ago in range(3000, 2000, -10)]
    points += [(ago, None if ago == 1000 else 5 << 20) for ago in range(1500, 0, -10)]
    known = json.dumps(history(*points).to_json())
    with ProgressServer(documents.full) as server:
        opened = tab()
        opened.page.route(HISTORY, functools.partial(fulfill, known))
        page = opened.open(server.address)
        plots = page.get_by_role("img", name="WAL at the source")
        expect(plots).to_have_count(1)
        expect(plots.locator(".line-0")).to_have_count(3)
        label = plots.get_attribute("aria-label") or ""
        assert label.startswith("WAL at the source. Retained: 4.0 KiB at ")
        assert "at most 5.0 MiB at " in label
        assert plots.locator(".line-1").count() == 3
        assert "6.0 MiB" in plots.locator("text").all_text_contents()
        page.locator("summary").first.click()
        assert "5.0 MiB" in page.locator("figure table").first.inner_text()
        page.get_by_role("radio", name="2 days").check()
        expect(page.get_by_role("radio", name="2 days")).to_be_checked()


@pytest.mark.nightly
def test_extreme_figures(tab: Tabs) -> None:
    """Nothing, zero and the largest numbers are shown, and no plot has an impossible coordinate."""
    for value in (None, 0, 1, 2**62):
        known = json.dumps(history((60, value), (50, value)).to_json())
        slot = samples.slot(lag_bytes=value, retained_bytes=value, wal_status=None, safe_wal_bytes=value, active=None)
        table = documents.table(1, "t", lag_seconds=None if value is None else float(value), rows_applied=value or 0)
        empty = samples.progress(table, at=datetime.now(UTC), slot=slot)
        with ProgressServer(lambda shown=empty: shown) as server:  # type: ignore[misc]
            opened = tab()
            opened.page.route(HISTORY, functools.partial(fulfill, known))
            page = opened.open(server.address)
            assert "NaN" not in page.content()
            assert "undefined" not in page.locator("main").inner_text()
            assert "Infinity" not in page.content()


@pytest.mark.nightly
def test_a_screen_reader_is_left_in_peace(tab: Tabs) -> None:
    """Figures change every two seconds. What is announced changes only with the state and the number of errors."""
    shown = [documents.full()]
    with ProgressServer(lambda: shown[-1]) as server:
        page = tab().open(server.address)
        page.evaluate(
            """() => {
                window.changes = [];
                const seen = new MutationObserver(() => window.changes.push(1));
                for (const live of document.querySelectorAll("[role=status], [role=alert], [aria-live]"))
                    seen.observe(live, {childList: true, characterData: true, subtree: true});
            }"""
        )
        expect(page.locator("#announcement")).to_have_text("shop: Running, 1 table with an error")
        for lag in (10, 20):
            shown.append(documents.full(documents.table(900, "more", rows_applied=lag)))
            expect(page.locator("#tables-body tr").filter(has_text="public.more")).to_contain_text(str(lag))
        # The number of tables has changed once.
        assert page.evaluate("window.changes.length") == 1
        shown.append(documents.full(documents.table(901, "bad", phase="Errored", error=samples.error())))
        expect(page.locator("#announcement")).to_have_text("shop: Running, 2 tables with an error")


@pytest.mark.nightly
def test_the_token_is_asked_for(tab: Tabs, tmp_path: Path) -> None:
    """A wrong one is refused. The right one is kept for this tab alone. A changed one is asked for again."""
    file = tmp_path / "token"
    file.write_text("rîght")
    with ProgressServer(documents.full, token=AccessToken(file)) as server:
        file.write_text("right-one")
        opened = tab()
        page = opened.page
        page.goto(f"{server.address}/")
        page.get_by_label("Token", exact=True).fill("wröng")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("The engine refuses this token.")
        expect(page.locator("#figures")).to_be_hidden()
        page.get_by_label("Token", exact=True).fill(" right-one ")
        page.get_by_role("button", name="Use this token").click()
        expect(page.locator("#tables-body tr")).to_have_count(6)
        page.reload()
        expect(page.locator("#tables-body tr")).to_have_count(6)
        other = page.context.new_page()
        other.goto(f"{server.address}/")
        expect(other.locator("#token")).to_be_visible()
        file.write_text("another")
        expect(page.locator("#token")).to_be_visible()
        expect(page.locator("#figures")).to_be_hidden()
        assert page.evaluate("sessionStorage.length + localStorage.length") == 0
        assert "right-one" not in page.content()


@pytest.mark.nightly
def test_an_engine_that_starts_hangs_or_is_newer(tab: Tabs) -> None:
    """The page says so, and shows figures as soon as it has some."""
    shown: list[Progress | None] = [None]
    with ProgressServer(lambda: shown[-1]) as server:
        opened = tab()
        page = opened.page
        page.goto(f"{server.address}/")
        expect(page.locator("#connection")).to_have_text("The engine is starting. It has no progress yet.")
        expect(page.locator("#figures")).to_be_hidden()
        shown.append(documents.full())
        expect(page.locator("#figures")).to_be_visible()
        expect(page.locator("#connection")).to_be_hidden()
        old = datetime.now(UTC) - timedelta(hours=2)
        shown.append(samples.progress(at=old))
        expect(page.locator("#connection")).to_contain_text("its figures do not change")
        expect(page.locator("#age")).to_have_text("Figures are 2h old")
        page.route("**/v1/progress", lambda route: route.fulfill(body='{"version": 2}'))
        expect(page.locator("#connection")).to_contain_text("in version 2")


@pytest.mark.nightly
def test_the_history_outlives_an_engine(tab: Tabs) -> None:
    """Points before the start of an engine stay if they are of its pipeline, and go if they are of another one."""
    script = """async ([documents, loaded]) => {
        const { History } = await import("/history.js");
        const history = new History();
        for (const document of documents) history.add(document);
        if (loaded) history.load(loaded);
        return history.points.map((point) => [point.at / 1000, point.retainedBytes]);
    }"""

    def document(seconds: float, pipeline: str = "shop") -> dict[str, Any]:
        slot = samples.slot(retained_bytes=int(seconds))
        return samples.progress(at=datetime.fromtimestamp(seconds, UTC), pipeline=pipeline, slot=slot).to_json()

    at = tuple(datetime.fromtimestamp(second, UTC) for second in (100, 110, 120))
    columns = dict.fromkeys(("lag_bytes", "retained_bytes", "staged_bytes", "lag_seconds"), (7, None, 9))
    loaded = History(at=at, seconds=(10, 10, 10), rows_per_second=(1.0, 1.0, 1.0), **columns).to_json()
    with ProgressServer(documents.full) as server:
        page = tab().open(server.address)
        seen = [document(50), document(60), document(60), document(105), document(125)]
        assert page.evaluate(script, [seen, None]) == [[50, 50], [60, 60], [105, 105], [125, 125]]
        merged = [[50, 50], [60, 60], [100, 7], [110, None], [120, 9], [125, 125]]
        assert page.evaluate(script, [seen, loaded]) == merged
        assert page.evaluate(script, [seen, loaded | {"version": 2}]) == [[50, 50], [60, 60], [105, 105], [125, 125]]
        assert page.evaluate(script, [[*seen, document(130, "other")], None]) == [[130, 130]]
        far = [document(0), *(document(172_800 + second) for second in range(0, 20, 2))]
        assert page.evaluate(script, [far, None])[0] == [172_800, 172_800]


@pytest.mark.nightly
def test_cuts(tab: Tabs) -> None:
    """The complete one and the one that is made, with what they lack. Without cuts there is no such section."""
    complete = CutProgress(name="c-1", phase="Complete", lsn=Lsn(0x1F0), at=samples.NOON, tables=6, tagged=6)
    pending = CutProgress(name="<i>c-2", phase="Pending", tables=6, tagged=2, left_out=("public.<b>: errored",))
    shown = [CutsProgress(every_seconds=5, kept=3, last_complete=complete, pending=pending)]
    with ProgressServer(lambda: replace(documents.full(), cuts=shown[-1])) as server:
        page = tab().open(server.address)
        text = page.locator("#cuts").inner_text()
        assert "3 complete cuts kept, a new one every 5s" in text
        assert "Complete at 0/1F0: 6 of 6 tables, 31 Jan 12:00:00" in text
        assert "<i>c-2\n" in text
        assert "Pending: 2 of 6 tables" in text
        assert "Left out: public.<b>: errored" in text
        shown.append(CutsProgress())
        expect(page.locator("#cuts")).to_be_hidden()


@pytest.mark.nightly
def test_numbers_read_like_those_of_the_command_line(tab: Tabs) -> None:
    """Sizes, durations, percentages, rates and names have the same texts in both."""
    figures: list[float] = [0, 0.04, 0.05, 0.5, 1, 9.94, 9.95, 59.5, 60, 99.94, 99.95, 99.96, 100, 999, 999.5, 1000]
    figures += [1023, 1024, 3599, 3600, 3661, 86_399, 86_400, 90_000, 1e6, 2**20, 1e7, 1e9, 2**40, 1e12, 2**53]
    figures += [math.exp(x / 7) for x in range(200)]
    with ProgressServer(documents.full) as server:
        page = tab().open(server.address)
        for name in ("size", "number", "duration", "percent", "rate"):
            script = (
                f"async (values) => {{ const f = await import('/format.js'); return values.map((v) => f.{name}(v)); }}"
            )
            given = [*(map(int, figures) if name == "size" else figures), None]
            assert page.evaluate(script, given) == [getattr(formatting, name)(value) for value in given]
        script = "async (tables) => { const f = await import('/format.js'); return tables.map((t) => f.argument(t)); }"
        tables = [QualifiedTable(s, n) for s in ("public", "a.b", "it's") for n in (*documents.HOSTILE, "orders", "é")]
        shown = page.evaluate(script, [{"schema": t.schema, "name": t.name} for t in tables])
        assert shown == [t.argument for t in tables]
        script = "async (names) => { const f = await import('/format.js'); return names.map((n) => f.printable(n)); }"
        names = [*documents.HOSTILE, "".join(map(chr, [*range(10), *range(11, 0x2100)]))]
        assert page.evaluate(script, names) == [printable(name).replace("\n", "\\n") for name in names]


@pytest.mark.nightly
def test_a_copy_of_an_earlier_process_has_no_rows(tab: Tabs) -> None:
    """Its size is not stored: after a restart the cell is empty, and not 0."""
    older, empty = CopyProgress(percent=100.0), samples.copying(rows=0, total_bytes=0)
    now = samples.progress(samples.table("older", copy=older), samples.table("no_rows", copy=empty))
    with ProgressServer(lambda: now) as server:
        page = tab().open(server.address)
        cells = {name: page.locator("#tables-body tr").filter(has_text=name) for name in ("older", "no_rows")}
        expect(cells["older"].locator("[data-title=Copied]")).to_have_text("100%")
        expect(cells["older"].locator("[data-title=Rows]")).to_have_text("")
        expect(cells["no_rows"].locator("[data-title=Rows]")).to_have_text("0")
