"""Chat templates that ask for much work in few characters, one for each way that was found."""

from __future__ import annotations

_MANY = "{% set s = 'a' * 1900000 %}"
_LIST = "{% set s = ['a' * 1000] * 1500 %}"
_LOOP, _END = "{% for i in range(99999) %}", "{% endfor %}"
_DEEP = "{% set n = namespace(x=(1,)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
_NEST = "{% set n = namespace(x=()) %}{% for i in range(20000) %}{% set n.x = (n.x,) %}{% endfor %}"

TEMPLATES: dict[str, str] = {
    # One call in C, or in a loop.
    "wordcount": "{% set s = 'a ' * 22000000 %}{{ s|wordcount }}",
    "title": "{{ ('a-' * 20000000)|title|length }}",
    "split": "{% set s = 'a' * 49000000 %}{{ s.split('a')|length }}",
    "striptags": "{% set s = '<>' * 22000000 %}{{ s|striptags }}",
    "sort": "{% set s = 'ab' * 22000000 %}{{ s|list|sort|length }}",
    "in": f"{_MANY}{_LOOP}{{% if 'aaab' in s %}}{{% endif %}}{_END}",
    "not in": f"{_MANY}{_LOOP}{{{{ 1 if 'aaab' not in s }}}}{_END}",
    "in a list": f"{_LIST}{_LOOP}{{% if 'b' * 1000 in s %}}{{% endif %}}{_END}",
    "equals": f"{_MANY}{{% set t = 'a' * 1900000 %}}{_LOOP}{{% if s == t %}}{{% endif %}}{_END}",
    "less": f"{_MANY}{{% set t = 'a' * 1900000 %}}{_LOOP}{{% if s < t %}}{{% endif %}}{_END}",
    "count": f"{_MANY}{_LOOP}{{{{ s.count('aaab') }}}}{_END}",
    "rfind": "{% set s = 'a' * 1000000 %}{{ s.rfind('b' ~ 'a' * 500000) }}",
    "strip": "{% set s = 'a' * 1000000 %}{{ s.strip('b' * 1000000 ~ 'a')|length }}",
    "upper": f"{_MANY}{_LOOP}{{% set t = s|upper %}}{_END}",
    "slice": f"{_MANY}{_LOOP}{{% set t = s[1:] %}}{_END}",
    "slice of a list": f"{{% set s = [1] * 200000 %}}{_LOOP}{{% set t = s[::-1] %}}{_END}",
    "test": f"{_MANY}{_LOOP}{{% if s is lower %}}{{% endif %}}{_END}",
    "test in": f"{_MANY}{_LOOP}{{% if 'aaab' is in s %}}{{% endif %}}{_END}",
    "float": f"{{% set s = '1' * 1900000 %}}{_LOOP}{{% set t = s|float %}}{_END}",
    "map": f"{_LOOP}{{{{ range(99999)|map('upper')|list|length }}}}{_END}",
    "select": f"{_LOOP}{{% set t = range(99999)|select('odd')|list %}}{_END}",
    "divided": f"{{% set a = ('f' * 400000)|int(0, 16) %}}{_LOOP}{{% set t = a // 3 %}}{_END}",
    "divisible": f"{{% set a = ('f' * 400000)|int(0, 16) %}}{_LOOP}{{{{ a is divisibleby(a) }}}}{_END}",
    "power": "{{ 2|round(1900000, 'ceil') }}",
    # What Jinja or Python does without being asked.
    "output": f"{{% set s = [1] * 200000 %}}{_LOOP}{{% set t %}}{{{{ s }}}}{{% endset %}}{_END}",
    "long bodies": f"{_LOOP}{'{% set t = 1 %}' * 5000}{_END}",
    "long macro": f"{{% macro f() %}}{'{% set t = 1 %}' * 5000}{{% endmacro %}}{_LOOP}{{{{ f() }}}}{_END}",
    "long constant": f"{_LOOP}{{% if 'ab' in '{'a' * 90000}' %}}{{% endif %}}{_END}",
    "unpacked": f"{{% macro f() %}}{{% endmacro %}}{{% set s = [1] * 200000 %}}{_LOOP}{{{{ f(*s) }}}}{_END}",
    # Small values whose text, hash or comparison is large.
    "text of copies": f"{_DEEP}{{{{ n.x }}}}",
    "hash of copies": f"{_DEEP}{{% set t = {{n.x: 1}} %}}",
    "key of copies": f"{_DEEP}{{{{ messages[0][n.x] }}}}",
    "equal copies": _DEEP + _DEEP.replace("n.x", "m.x").replace("n =", "m =") + "{{ n.x == m.x }}",
    "json of copies": f"{_DEEP}{{{{ n.x|tojson|length }}}}",
    "namespaces": "{% set n = namespace(x=1) %}{% for i in range(60) %}"
    "{% set n.x = namespace(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}",
    "deep hash": f"{_NEST}{{% set t = {{n.x: 1}} %}}",
    "equal hashes": "{% set m = 2305843009213693951 %}{{ range(0, 90000 * m, m)|unique|list|length }}",
    "equal hashes of tuples": "{% for i in range(30) %}{% set t = {"
    + ", ".join(f"({i}, {i}): 1" for i in range(150))
    + "} %}{% endfor %}",
    "chained": "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = n.x|map('abs') %}"
    "{% endfor %}{{ n.x|list }}",
    # Few characters that become many.
    "format": "{% set s = 'a' * 100000 %}{{ ('{0}' * 3000).format(s)|length }}",
    "percent": "{% set s = 'a' * 100000 %}{{ ('%(a)s' * 3000) % {'a': s} }}",
    "widths": "{{ ('{0:99999}' * 16000).format(1)|length }}",
    "widths of a key": "{{ ('%(a)99999d' * 16000) % {'a': 1} }}",
    "width of a long key": "{% set k = 'x' * 200 %}{{ ('{0[' ~ k ~ ']:999999999}').format({k: 1}) }}",
    "width of a mapping": "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "width from a text": "{{ '{0:{1}}'.format('a', '999999999') }}",
    "width from a value": "{{ '{0:{1[w]}}'.format('a', {'w': 999999999}) }}",
    "wrapped": "{{ ('a' * 150000)|wordwrap(1)|length }}",
    "precisions": "{{ ('{0:.99999f}' * 500).format(1.5)|length }}",
    "replace": "{% set s = 'a' * 1000000 %}{{ s.replace('', 'b' * 1000)|length }}",
    "separators": "{{ ([1] * 100000)|tojson(separators=('a' * 100000, ':'))|length }}",
    "indented": "{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x] * 2 %}{% endfor %}"
    "{{ n.x|tojson(indent=900)|length }}",
    "sum": "{{ ([[1]] * 100000)|sum(start=[])|length }}",
    "doubled": "{% set n = namespace(x='xx') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "added": "{% set n = namespace(x='x') %}{% for i in range(99999) %}{% set n.x = n.x + 'x' * 1000 %}"
    "{% endfor %}",
    "date": "{{ strftime_now('%' * 1000000) }}",
    "filtered loop": f"{{% for i in range(99999) if [{'1, ' * 2000}] and z %}}{_END}",
    "defaults": f"{{% macro f(a=[{'1, ' * 2000}]) %}}{{% endmacro %}}{_LOOP}{{{{ f() }}}}{_END}",
    # Numbers whose length makes dividing or showing them slow.
    "long sums": "{% set n = namespace(x=1) %}{% for i in range(9000) %}{% set n.x = n.x + n.x %}{% endfor %}"
    "{{ n.x is none }}",
    "loops": f"{_LOOP}{_LOOP}{_END}{_END}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
}

COMPILED: dict[str, str] = {
    "parentheses": "{{ " + "(" * 40_000 + ")" * 40_000 + " }}",
    "tests": "{% if 1 %}" * 4_000 + "{% endif %}" * 4_000,
    "sums": "{{ " + "+".join(["1"] * 45_000) + " }}",
    "names": "".join(f"{{% if a{i} %}}{{% set b{i} = 1 %}}{{% endif %}}" for i in range(2_250)),
}
"""Much work for the compiler. The last one renders: only a limit of time ends it."""
