"""Chat templates of the kinds that model files carry, in this project's own words."""

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Headers around roles, trimmed contents, a date, the start-of-text token written by the template.
LLAMA3 = """{{- bos_token }}
{%- if strftime_now is defined %}
    {%- set today = strftime_now("%d %b %Y") %}
{%- else %}
    {%- set today = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + today + "\\n" + system + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# The system text goes into the first user turn; roles must alternate; the assistant is called model.
GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' -%}
    {%- set prefix = messages[0].content + '\\n\\n' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set prefix = '' -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message.role == 'assistant' else message.role -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
    {%- if message.content is string -%}
        {{ message.content | trim }}
    {%- elif message.content is iterable -%}
        {%- for part in message.content -%}{{ part.text | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

# No system role at all, strict order.
MISTRAL = """{{ bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""

# Thoughts are cut out of earlier answers, found by walking the conversation backwards.
THINKING = """{%- set ns = namespace(last=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == "user" %}
        {%- set ns.searching = false %}
        {%- set ns.last = (messages|length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- macro turn(role, text) %}{{ '<|im_start|>' ~ role ~ '\\n' ~ text }}{% endmacro %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content and loop.index0 < ns.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- generation %}{{- turn('assistant', content) }}{% endgeneration %}
    {%- else %}
        {{- turn(message.role, message.content) }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- turn('assistant', '') }}{% endif %}
"""
