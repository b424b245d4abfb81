"""The web page in a real browser: Debian's Chromium, without a window."""

import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ARGUMENTS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --window-size=1280,850""".split()

SECONDS = 60


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    profile = tmp_path_factory.mktemp("profile")
    for argument in [*ARGUMENTS, f"--user-data-dir={profile}"]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield browser
    browser.quit()


@pytest.fixture
def page(server, browser):
    browser.get(server.url)
    browser.execute_script("localStorage.clear(); sessionStorage.clear()")
    browser.get(server.url)
    until(browser, lambda: text(browser, "#model"))
    yield browser
    shots = os.environ.get("SCREENSHOTS")
    if shots:
        browser.save_screenshot(f"{shots}/{os.environ['PYTEST_CURRENT_TEST'].split('::')[1].split(' ')[0]}.png")
    problems = [entry["message"] for entry in browser.get_log("browser")]
    assert not problems, problems


def until(browser, holds):
    return WebDriverWait(browser, SECONDS).until(lambda _: holds())


def all_of(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def text(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector).text


def press(browser, *keys):
    browser.switch_to.active_element.send_keys(*keys)


def setting(browser, name, value):
    field = browser.find_element(By.ID, name)
    field.clear()
    field.send_keys(value)
    browser.execute_script("arguments[0].dispatchEvent(new Event('change', { bubbles: true }))", field)


def ask(browser, question, max_tokens):
    """By keys alone; gives the answer's text when it is complete."""
    press(browser, Keys.ALT, "s")
    setting(browser, "max_tokens", str(max_tokens))
    setting(browser, "seed", "7")
    press(browser, Keys.ESCAPE)
    press(browser, question, Keys.ENTER)
    return answer(browser)


def answer(browser):
    until(browser, lambda: all_of(browser, ".message.assistant .acts"))
    return text(browser, ".message.assistant:last-child .text")


def test_a_question_is_answered_and_asked_again(page):
    first = ask(page, "What is a compiler?", 24)
    assert len(first) > 20
    assert text(page, ".message.user").startswith("What is a compiler?")
    line = text(page, ".message.assistant .acts span")
    assert "24 written" in line and "tok/s" in line, line
    # The same seed and the same prompt: the same answer, and nothing of the prompt is read again.
    press(page, Keys.ALT, "r")
    until(page, lambda: "of them from before" in text(page, "#messages"))
    assert answer(page) == first
    # What was said is still there when the page is opened again, and a new chat forgets it.
    page.refresh()
    until(page, lambda: text(page, "#model"))
    assert text(page, ".message.assistant .text") == first
    press(page, Keys.ALT, "n")
    assert not all_of(page, ".message")


def test_an_answer_is_stopped_and_frees_its_place(page, server):
    # Whatever it writes, it must not end by itself before it is stopped: the tokens that end turns are forbidden.
    page.execute_script("""const send = window.fetch;
        window.fetch = (path, options) => {
            const asked = options.body && JSON.parse(options.body);
            const body = asked && JSON.stringify({ ...asked, logit_bias: { 0: -100, 1: -100, 2: -100 } });
            return send(path, body ? { ...options, body } : options);
        }""")
    press(page, "Tell me a long story.", Keys.ENTER)
    until(page, lambda: len(text(page, "#messages")) > 60)
    press(page, Keys.ESCAPE)
    until(page, lambda: "stopped" in text(page, "#messages"))
    until(page, lambda: not server.status()["active"])
    # The message can be changed and sent again.
    press(page, Keys.ARROW_UP)
    until(page, lambda: not all_of(page, ".message"))
    assert page.find_element(By.ID, "question").get_attribute("value") == "Tell me a long story."


def test_the_monitor_shows_what_the_server_does(page):
    ask(page, "What is a compiler?", 24)
    until(page, lambda: "answers" in text(page, "#counts"))
    assert "planned" in text(page, "#memory-text")
    assert len(all_of(page, "#plan tr")) >= 4
    assert "slots" in text(page, "#arena-text")
    drawn = """const canvas = document.getElementById(arguments[0]);
        return canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0)"""
    assert all(page.execute_script(drawn, name) for name in ["speed-chart", "arena-map"])
    press(page, Keys.ALT, "m")
    assert not page.find_element(By.ID, "monitor").is_displayed()


def test_markdown_becomes_elements_and_never_code_that_runs(page):
    source = "\n".join([
        "# Title", "", "A **bold** word, `code`, <script>window.bad = 1</script>", "and [a link](https://example.org/x),",
        "[not one](javascript:window.bad=1) <img src=x onerror='window.bad=1'>.", "", "1. one", "2. two", "   - inner", "",
        "```rust", "let x = \"<b>\"; // note", "```", "", "| a | b |", "|---|---|", "| 1 | 2 |", "", "> said", "", "```", "open",
    ])
    script = """const done = arguments[1];
        import('/assets/markdown.js').then(({ markdown }) => {
            const box = document.createElement('div');
            box.append(markdown(arguments[0]));
            document.body.append(box);
            const count = (selector) => box.querySelectorAll(selector).length;
            done({
                counts: Object.fromEntries(['h1', 'strong', 'script', 'img', 'ol > li', 'ul > li', 'pre', 'td',
                    'blockquote', 'a'].map((one) => [one, count(one)])),
                link: box.querySelector('a').href, code: box.querySelector('pre').textContent,
                comment: box.querySelector('.comment').textContent, bad: window.bad ?? null,
            });
            box.remove();
        })"""
    page.set_script_timeout(SECONDS)
    made = page.execute_async_script(script, source)
    assert made["counts"] == {"h1": 1, "strong": 1, "script": 0, "img": 0, "ol > li": 2, "ul > li": 1, "pre": 2, "td": 2,
                              "blockquote": 1, "a": 1}
    assert made["link"] == "https://example.org/x" and made["bad"] is None
    assert made["code"] == 'let x = "<b>"; // note' and made["comment"] == "// note"


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_colours_follow_the_system(page, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    assert brightness < 150 if scheme == "dark" else brightness > 600, colour
