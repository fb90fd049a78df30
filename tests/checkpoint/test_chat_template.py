"""Chat templates as Hugging Face's libraries render them, and those that would never end or fill the memory."""

import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from inflight.checkpoint import chat_template
from inflight.checkpoint.chat_template import ChatTemplate
from inflight.errors import CourseError

HELLO = [{"role": "user", "content": "Hello, 日本 <&>"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}",
        "{% for i in range(9) %}{% if i == 3 %}{% break %}{% elif i %}{% continue %}{% endif %}{{ i }}{% endfor %}",
        "a\n  {% generation %}\n{{ messages[0].content }}\n{% endgeneration %}\nb",
        "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}{% endfor %}",
        "{{ messages | tojson }} {{ messages | tojson(ensure_ascii=True, indent=2) }}",
        "{{ strftime_now('%Y') }}",
        "{% if tools is none and documents is none and tools is defined %}none{% endif %}",
        "{%- if true -%}\n  x\n  {%- endif %}\n{{ add_generation_prompt }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{{ dict(a=1) }}{{ 'ab'[::-1] }}{{ messages[0].content.strip().split(',')[0] | upper }}",
    ],
)
def test_a_template_is_rendered_as_hugging_faces_libraries_do(source):
    [theirs], _ = render_jinja_template([HELLO], chat_template=source, add_generation_prompt=True, eos_token="</s>")
    assert ChatTemplate(source, {"eos_token": "</s>"}).render(HELLO) == theirs


@pytest.mark.parametrize(
    "source, words",
    [
        ("{{ 'a' * 10**10 }}", "memory"),
        ("{{ [0] * 10**10 }}", "memory"),
        ("{{ 'a'.ljust(10**10) }}", "memory"),
        ("{{ 'a' | center(10**10) }}", "memory"),
        ("{{ '%10000000000d' | format(1) }}", "memory"),
        ("{{ '{:>10000000000}'.format('a') }}", "memory"),
        ("{{ ('a' * 100000) | replace('a', 'b' * 100000) }}", "memory"),
        ("{{ messages | tojson(indent=10**9) }}", "memory"),
        ("{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "memory"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "computes for more than"),
        ("{{ lipsum(n=10**7) }}", "computes for more than|memory"),
        ("{{ 7 ** (10 ** 8) }}", "computes for more than"),
        ("{{ 'a' * 3000000 }}", "made 3,000,000 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself for ever"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "nested too deeply"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% foo %}", "line 1: Encountered unknown tag 'foo'"),
        ("{{", "line 1: unexpected 'end of template'"),
        ("{{ nothing.at_all }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ raise_exception('Only system messages') }}", "it says: Only system messages"),
        ("{{ '\\ud800' }}", "cannot be written"),
        ("a" * (1 << 19), "524,288 characters"),
    ],
    ids=lambda value: value[:30] if "{" in value else "",
)
def test_a_template_that_cannot_be_used_is_refused_in_a_sentence(source, words):
    with pytest.raises(CourseError, match=words) as caught:
        ChatTemplate(source).render(HELLO)
    assert "apply_chat_template" in str(caught.value) or "makers" in str(caught.value)


def test_who_renders_takes_no_memory_for_what_a_template_wants():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CourseError):
        ChatTemplate("{{ 'a' * (190 * 10**6) }}").render(HELLO)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB


def test_a_bad_message_leaves_the_next_one_well():
    template = ChatTemplate(
        "{% if messages[0].content == 'loop' %}{{ (7 + messages | length) ** (10 ** 8) }}{% endif %}well"
    )
    assert template.render(HELLO) == "well"
    with pytest.raises(CourseError, match="computes for more than"):
        template.render([{"role": "user", "content": "loop"}])
    assert template.render(HELLO) == "well"


def test_one_process_answers_all_and_ends_with_its_template():
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(HELLO) == HELLO[0]["content"]
    process = template._child._process
    messages = [[{"role": "user", "content": str(number)}] for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(template.render, messages)) == [str(number) for number in range(40)]
    assert template._child._process is process
    del template
    assert process.wait(30) < 0


def test_a_process_that_was_killed_is_started_again():
    template = ChatTemplate("well")
    template.render(HELLO)
    template._child._process.kill()
    with pytest.raises(CourseError, match="ended its process"):
        template.render(HELLO)
    assert template.render(HELLO) == "well"


def test_a_long_message_comes_back_whole():
    content = "日本 <&>" * 500_000
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": content}]) == content


def test_what_lies_in_the_working_folder_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "jinja2.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert ChatTemplate("well").render(HELLO) == "well"


def test_a_machine_that_does_not_answer_is_not_waited_for(monkeypatch):
    template = ChatTemplate("{{ 7 ** (10 ** 8) }}")
    monkeypatch.setattr(chat_template, "ANSWER_S", 0)
    with pytest.raises(CourseError, match="computes for more than"):
        template.render(HELLO)
