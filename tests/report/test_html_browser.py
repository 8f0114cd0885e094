"""The page in a real browser: no error, no request, hostile text as text, keys, themes, widths."""

import json
import shutil

import pytest
from fake_runs import HOSTILE, sample, validation_lines, write_fake_run, write_lines

from opdvr.report.html import write_report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium on the PATH"),
    pytest.mark.slow,
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


class Opened:
    """A page, with everything that should not have happened in `wrong`."""

    def __init__(self, browser, file, width=1280, scheme="light"):
        self.page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.wrong = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        own = file.resolve().as_uri()
        self.page.on("request", lambda r: r.url not in (own, "data:,") and self.wrong.append(r.url))
        self.page.goto(own)

    def text(self, selector):
        return self.page.locator(selector).text_content()


@pytest.fixture
def opened(browser):
    pages = []

    def open_page(file, **view):
        pages.append(Opened(browser, file, **view))
        return pages[-1]

    yield open_page
    for one in pages:
        one.page.close()
        assert one.wrong == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_report([write_fake_run(tmp_path_factory.mktemp("plain") / "run")])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=document.title='hacked'>"
    text = "".join(HOSTILE)
    tokens = [*HOSTILE, "x" * 100_000, "", "\n"]
    fields = {"data_source": text, "gold": text, "name": text, "text": text}
    write_fake_run(folder, samples=[sample(1, True, tokens=tokens, **fields)])
    lines = validation_lines(10)
    lines[0]["samples"] = [
        {"data_source": text, "prompt": text, "response": text, "gold": text, "score": 1.0}
    ]
    write_lines(folder / "validation.jsonl", lines)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics[0] |= {f"val-core/{HOSTILE[0]}/acc/mean@2": 0.5, "val-core/$x_1$/acc/mean@2": 0.5}
    write_lines(folder / "metrics.jsonl", metrics)
    versions = {"started": text, "command_line": text, "command": [text]}
    (folder / "versions.json").write_text(json.dumps(versions))
    (folder / "summary.txt").write_text(text, encoding="utf-8", errors="replace")
    (folder / "config.yaml").write_text(json.dumps({"a": text, text: "b"}))
    return write_report([folder])


def test_hostile_output_is_shown_as_text(opened, hostile):
    one = opened(hostile)
    assert "hacked" in one.page.title()  # as a part of the run's name, whole
    assert one.page.title().startswith("<img src=x")
    assert one.page.locator("img, [onerror], #tokens script").count() == 0
    tokens = one.page.locator("#tokens .token")
    assert tokens.count() == len(HOSTILE) + 3
    assert tokens.nth(0).text_content() == HOSTILE[0]
    assert "⟨U+202E⟩right to left⟨U+202C⟩" in tokens.nth(3).text_content()
    assert "⟨U+0000⟩" in tokens.nth(4).text_content()
    assert "⟨U+D800⟩" in tokens.nth(5).text_content()
    assert len(tokens.nth(len(HOSTILE)).text_content()) < 400
    assert tokens.nth(len(HOSTILE) + 1).text_content() == "⟨empty⟩"
    assert HOSTILE[0] in one.text("#validation .model:not(.prompt)")
    assert HOSTILE[0] in one.text("#gate .pushed code >> nth=1")
    assert one.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_script_in_the_markup_would_not_run(opened, plain, tmp_path):
    spoilt = tmp_path / "spoilt.html"
    spoilt.write_text(
        plain.read_text().replace("<main>", "<main><script>document.title='hacked'</script>")
    )
    one = opened(spoilt)
    assert "hacked" not in one.page.title()
    assert any("Content Security Policy" in message for message in one.wrong)
    one.wrong.clear()


def test_a_chart_tells_the_values_at_the_nearest_step(opened, plain):
    one = opened(plain)
    chart = one.page.locator("figure.chart", has_text="KL estimate").first
    chart.focus()
    chart.press("ArrowRight")
    chart.press("ArrowRight")
    # 1 / step
    assert chart.locator(".readout").text_content().split() == ["step", "2", "0.5"]
    chart.locator(":scope > svg").hover()
    assert "step" in chart.locator(".readout").text_content()
    chart.press("End")
    assert chart.locator(".readout").text_content().split() == ["step", "10", "0.1"]


def test_keys_move_between_tokens_and_between_responses(opened, plain):
    one = opened(plain)
    page = one.page
    focused = "document.activeElement.getAttribute('aria-label')"
    page.locator("#tokens .token").first.focus()
    assert page.evaluate(focused) == "4, id 0, log-ratio \u22121 nats, reward 0, zeroed by the gate"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused).startswith("*, id 1")
    assert one.text("#tokens .detail").startswith("*, id 1, log-ratio \u22120.5 nats")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("End")
    assert page.evaluate(focused).startswith("8, id 4, log-ratio +1 nats")
    # Only one token is in the order of Tab.
    assert page.locator("#tokens .token[tabindex='0']").count() == 1
    page.keyboard.press("n")
    assert one.text("#tokens [role=status]") == "2 of 20"
    assert page.evaluate(focused).startswith("4, id 0")
    page.keyboard.press("PageDown")
    assert one.text("#tokens [role=status]") == "3 of 20"
    page.keyboard.press("p")
    page.keyboard.press("PageUp")
    page.keyboard.press("p")
    assert one.text("#tokens [role=status]") == "20 of 20"


def test_tokens_are_coloured_by_sign_and_struck_through_where_zeroed(opened, plain):
    tokens = opened(plain).page.locator("#tokens .token")
    # Correct, log-ratios -1, -0.5, 0, 0.5, 1: the gate zeroed all that is not above 0.
    backgrounds = [tokens.nth(i).evaluate("e => e.style.background") for i in range(5)]
    assert ["--down" in backgrounds[0], "--up" in backgrounds[4]] == [True, True]
    assert backgrounds[2] == ""
    lines = [
        tokens.nth(i).evaluate("e => getComputedStyle(e).textDecorationLine") for i in range(5)
    ]
    assert lines == ["line-through"] * 3 + ["none"] * 2


def test_filters_and_the_omitted_middle(opened, tmp_path):
    cut = sample(3, False, omitted=[2, 1234])
    run = write_fake_run(tmp_path / "run", samples=[sample(1, True), sample(2, False), cut])
    one = opened(write_report([run]))
    tokens = one.page.locator("#tokens")
    tokens.get_by_label("Verdict").select_option("incorrect")
    assert one.text("#tokens [role=status]") == "1 of 2"
    tokens.get_by_label("Step").select_option("3")
    assert one.text("#tokens [role=status]") == "1 of 1"
    assert "1,234 tokens left out" in one.text("#tokens .gap")
    before = one.page.locator("#tokens .gap").evaluate("e => e.previousSibling.dataset.index")
    assert before == "1"
    tokens.get_by_label("Verdict").select_option("correct")
    assert one.text("#tokens [role=status]") == "none of these"


def test_options_are_searched_and_windows_of_the_anatomy_chosen(opened, plain):
    one = opened(plain)
    one.page.get_by_label("Search").fill("gated_mode")
    assert one.text("#config-count").startswith("1 of ")
    one.page.get_by_label("Search").fill("")
    one.page.get_by_label("only those on the command line").check()
    assert one.text("#config-count").startswith("1 of ")
    assert one.page.locator(".anatomy:visible").count() == 1
    one.page.locator("#anatomy-choice").select_option("a1")
    assert one.page.locator("#a1").is_visible() and not one.page.locator("#a0").is_visible()


def luminance(rgb):
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(opened, plain, scheme):
    page = opened(plain, scheme=scheme).page
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for selector in ("body", ".note", "figure.chart svg text", "#tokens .right", "nav a"):
        name = "fill" if "text" in selector else "color"
        colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{name}")
        levels = sorted(
            luminance([int(v) / 255 for v in c.strip("rgb()").split(",")]) for c in (back, colour)
        )
        # WCAG AA for text of this size.
        assert (levels[1] + 0.05) / (levels[0] + 0.05) >= 4.5, selector


def test_the_button_turns_the_theme(opened, plain):
    one = opened(plain)
    back = "getComputedStyle(document.body).backgroundColor"
    light = one.page.evaluate(back)
    button = one.page.locator("#theme")
    button.click()
    assert one.page.evaluate(back) == light
    button.click()
    assert button.text_content() == "Theme: dark"
    assert one.page.evaluate(back) != light


@pytest.mark.parametrize("width", [390, 1280])
def test_no_sideways_scrolling(opened, plain, width):
    page = opened(plain, width=width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_headings_labels_and_language(opened, plain):
    page = opened(plain).page
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(e => +e.tagName[1])")
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    unnamed = page.evaluate(
        "[...document.querySelectorAll('select, input')].filter(e => !e.labels.length).length"
    )
    assert unnamed == 0
    assert page.locator("figure > svg:not([aria-label])").count() == 0


def test_printing_keeps_the_charts(opened, plain):
    page = opened(plain).page
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.locator("figure.chart svg").first.is_visible()


def test_runs_compared(opened, tmp_path):
    folders = [
        write_fake_run(tmp_path / f"{gate}-{seed}", gate=gate, seed=seed)
        for gate in ("default", "inverse")
        for seed in (1, 2)
    ]
    one = opened(write_report(folders, tmp_path / "all.html"))
    assert one.text("h1") == "2 runs compared"
    assert one.page.locator("#curves .legend li", has_text="default (2 runs)").count() > 3
    one.page.locator("#tokens").get_by_label("Run").select_option("inverse-2")
    assert "inverse-2" in one.text("#tokens .facts")
