"""Chat templates as Hugging Face's libraries render them, and those that cannot be used."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

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
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% foo %}", "line 1"),
        ("{{ nothing.at_all }}", "'nothing'"),
        ("{{ raise_exception('Only system messages') }}", "Only system messages"),
    ],
    ids=lambda value: value[:30] if "{" in value else "",
)
def test_a_template_that_cannot_be_used_is_refused_in_a_sentence(source, words):
    with pytest.raises(CourseError, match=words) as caught:
        ChatTemplate(source).render(HELLO)
    assert "apply_chat_template: false" in str(caught.value)
