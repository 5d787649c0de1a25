"""The page of a function, in a browser: what is on it, and what it reacts to."""

import re
import shutil

import pytest
from described import Small, training_step

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to open the page in")


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    net = Small()
    step, arrays = training_step(net, 3)
    step.profile(*arrays, calls=1)
    below, arrays = training_step(net, 2)
    below.profile(*arrays, calls=1)
    path = tmp_path_factory.mktemp("page") / "page.html"
    step.to_html(path, beside=below)
    return path


def opened(browser, path, address="", width=1600, **settings):
    """Open a page, which must not complain and must ask the network for nothing."""
    page = browser.new_page(viewport={"width": width, "height": 1000}, **settings)
    page.complaints = []
    page.on("console", lambda said: page.complaints.append(said.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on(
        "request",
        lambda asked: page.complaints.append(asked.url) if asked.url[:4] == "http" else None,
    )
    page.goto(f"{path.as_uri()}{address}")
    page.wait_for_selector("body[data-ready]")
    return page


@pytest.fixture
def page(browser, path):
    page = opened(browser, path)
    yield page
    assert page.complaints == []
    page.close()


def test_layers_are_closed_until_they_are_opened(page):
    assert page.locator("#graph .columns").inner_text().split() == ["forward", "backward", "update"]
    assert page.locator("[data-layer='layer1']").get_attribute("aria-expanded") == "false"
    assert not page.locator("[data-layer='layer1.0']").count()
    page.click("[data-layer='layer1']")
    page.click("[data-layer='layer1.0']")
    page.click("[data-layer='layer1.0.conv1']")
    assert page.locator("#graph .node b", has_text=re.compile("^conv2d$")).count() == 1
    page.click("[data-layer='layer1']")
    assert not page.locator("[data-layer='layer1.0']").count()


def test_search_finds_an_op_and_picks_it(page):
    page.keyboard.press("/")
    page.keyboard.type("conv2d layer1.1.conv2 forward")
    assert page.locator("#found button").count() >= 1
    page.keyboard.press("Enter")
    details = page.locator("#details")
    assert details.locator("h2").inner_text() == "conv2d"
    assert "layer1.1.conv2" in details.inner_text()
    assert "model.py:" in details.inner_text()
    assert page.locator("#graph .picked").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#graph .picked").count() == 0
    page.fill("#search", "no such thing")
    assert "nothing found" in page.locator("#found").inner_text()


def test_a_pass_shows_what_it_changed_before_and_after(page):
    page.click("#passes button:has-text('fuse_batch_norm')")
    card = page.locator("#changes .card", has_text="batch_norm, relu → batch_norm_relu").first
    before, after = card.locator(".sides > div").all()
    assert before.locator(".removed", has_text="relu").count() == 1
    assert after.locator(".added", has_text="batch_norm_relu").count() == 1
    before.locator(".removed", has_text="relu").click()
    assert "removed by fuse_batch_norm" in page.locator("#details").inner_text()
    page.keyboard.press("]")
    assert re.search("assign_layouts|decompose", page.locator("#changes h2").inner_text())
    page.click("#passes [data-pass='1']")
    assert re.search(
        r"share_common .*constants removed: .*const 0.9", page.inner_text("#changes h2")
    )
    assert "This pass changed only constants" in page.inner_text("#changes")
    page.click("#passes button:has-text('what runs')")
    assert page.locator("#graph").is_visible()


def test_a_kernel_is_a_box_of_its_ops_with_its_text(page):
    page.click("[data-layer='bn1']")
    page.locator("#graph .box.forward .title").first.click()
    details = page.locator("#details").inner_text()
    assert re.search(r"computes \d+ ops", details)
    assert "int mg_" in details
    assert "not fused with its neighbours" in details
    assert re.search(r"roofline\s+\d.* \(estimate\), limited by ", details)
    page.locator("#graph .box.forward .chip", has_text="rsqrt").first.click()
    assert page.locator("#details h2").inner_text() == "rsqrt"


def test_a_convolution_shows_its_rivals(page):
    page.click("[data-tab='steps']")
    page.click("#below th button:has-text('op')")
    candidates = "page.model.data.algorithms[step.algorithm]?.candidates.length ?? 0"
    number = page.evaluate(f"page.model.steps.findIndex((step) => ({candidates}) > 1)")
    page.click(f"#below tr[data-step='{number}']")
    table = page.locator("#details .rivals")
    assert table.locator("tr").count() > 2
    assert table.locator(".chosen").count() == 1
    is_fastest = "chosen" in (table.locator("tr").nth(1).get_attribute("class") or "")
    explained = page.locator("#details", has_text="Not the fastest alone")
    assert explained.count() == (not is_fastest)


def test_a_buffer_shows_its_life_and_the_peak_is_marked(page):
    assert page.locator("#below .peak").count() == 1
    assert "in use at step" in page.locator("#below .peak-label").text_content()
    page.locator("#below .peak-list .link").first.click()
    details = page.locator("#details").inner_text()
    assert "written by" in details
    assert re.search(r"from step \d+ to step \d+", details)
    assert page.locator("#below .buffer.picked").count() == 1


def test_the_timeline_and_the_layers_show_the_profile(page):
    page.keyboard.press("2")
    steps = page.evaluate("page.model.steps.length")
    assert page.locator("#below .run").count() == steps
    page.locator("#below .run").nth(3).click()
    assert "of the call" in page.locator("#details").inner_text()
    page.keyboard.press("3")
    head = page.locator("#below thead").inner_text()
    assert "times as fast" in head
    assert page.locator("#below tr", has_text="layer1").count() == 1


def test_the_address_keeps_what_is_picked(browser, path):
    first = opened(browser, path)
    first.click("[data-layer='conv1']")
    first.locator("#graph .node.forward", has_text="conv2d").first.click()
    first.keyboard.press("2")
    address = first.evaluate("location.hash")
    name = first.locator("#details h2").inner_text()
    second = opened(browser, path, address)
    assert second.locator("#details h2").inner_text() == name == "conv2d"
    assert second.locator("[data-tab='timeline']").get_attribute("aria-pressed") == "true"
    assert second.locator("#graph .picked").count() == 1
    for page in (first, second):
        assert page.complaints == []
        page.close()


def test_dark_is_asked_for_by_the_system_or_by_a_key(browser, path):
    page = opened(browser, path, color_scheme="dark")
    colour = "getComputedStyle(document.querySelector('header')).backgroundColor"
    assert page.evaluate(colour) == "rgb(27, 31, 39)"
    page.keyboard.press("d")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.uncheck("#shortcuts")
    page.click("#keys button")
    page.keyboard.press("d")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    assert page.complaints == []
    page.close()


VIEWS = {
    "as it opens": "",
    "a kernel": "page.pick(page.model.steps.find((s) => s.name === 'fused').node),"
    "page.openAll(true), page.state.tab = 'timeline', page._drawBelow()",
    "a pass": "page.pickPass(page.model.last - 4), page.state.tab = 'layers', page._drawBelow()",
    "constants": "page.pickPass(1), page.state.tab = 'steps', page._drawBelow()",
    "a buffer and results": "page.pickBuffer(page.model.steps[9].writes[0]), page.search('conv2d')",
    "keys": "page.help()",
}


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_page_meets_wcag_aa_on_a_telephone_and_a_screen(browser, path, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(browser, path, width=width, color_scheme=scheme)
    for name, view in VIEWS.items():
        page.evaluate(view)
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        violations = axe.run(
            page, options={"runOnly": tags, "resultTypes": ["violations"]}
        ).response
        assert len(violations["passes"]) > 10
        wrong = [(v["id"], v["nodes"][0]["html"][:200]) for v in violations["violations"]]
        assert not wrong, name
        sizes = page.evaluate(
            "[...document.querySelectorAll('body *')].filter((x) => x.checkVisibility() && "
            "x.textContent.trim()).map((x) => parseFloat(getComputedStyle(x).fontSize))"
        )
        assert min(sizes) >= 12
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.complaints == []
    page.close()


def test_keys_alone_reach_layers_ops_passes_and_tables(page):
    def focus(words):
        """Press Tab until an element has these words."""
        for _ in range(300):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.innerText").split("\n")[0].startswith(words):
                return
        raise AssertionError(words)

    focus("1 share_common")
    page.keyboard.press("Enter")
    assert "share_common" in page.inner_text("#changes h2")
    assert page.evaluate("document.activeElement.innerText").startswith("1 share_common")
    focus("what runs")
    page.keyboard.press("Enter")
    focus("▸ layer1")
    page.keyboard.press("Enter")
    focus("▸ 0")  # the row below
    page.keyboard.press("Enter")
    focus("▸ conv1")
    page.keyboard.press("Enter")
    focus("conv2d")
    page.keyboard.press("Enter")
    assert "layer1.0.conv1" in page.inner_text("#details")
    assert page.locator("#graph .picked").get_attribute("aria-current") == "true"
    focus("Steps")
    page.keyboard.press("Enter")
    focus("op")
    page.keyboard.press("Enter")
    assert page.locator("#below th[aria-sort]").inner_text() == "op ↑"
    focus("7")
    page.keyboard.press("Enter")
    assert "step 7 of" in page.inner_text("#details")
    page.keyboard.press("n")
    assert "step 8 of" in page.inner_text("#details")


def test_a_page_is_a_picture(page, tmp_path):
    page.screenshot(path=tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_a_malformed_address_still_shows_the_page(browser, path):
    page = opened(browser, path, "#f=7&pass=x&node=99999999&buffer=-1&tab=odd&open=%3Cb%3E")
    assert page.locator("#details h2").inner_text() == page.evaluate("page.model.data.title")
    assert page.complaints == []
    page.close()
