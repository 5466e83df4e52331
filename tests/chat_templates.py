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

# May think or not, as told; writes the thoughts of the last answer, empty ones too, and none of those before.
HYBRID = """{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}
        {%- endif %}
    {%- endif %}
    {{- content.strip('\\n') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# Begins every answer in its thoughts; earlier ones are cut out.
OPENS = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{ '<|User|>' + message.content }}{% endif %}
    {%- if message.role == 'assistant' %}
        {{- '<|Assistant|>' + message.content.split('</think>')[-1] + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}
"""

# The same, and a last answer is put into thoughts, whatever it is.
PREFILLS = """{%- set last = messages[-1].content.strip() if messages[-1].role == 'assistant' else '' %}
{%- for message in (messages[:-1] if last else messages) %}
    {{- '<SPECIAL_11>' + message.role + '\\n' + message.content + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt or last %}
    {{- '<SPECIAL_11>Assistant\\n<think>\\n\\n' + last }}
    {%- if not add_generation_prompt %}{{ '\\n<SPECIAL_12>\\n' }}{% endif %}
{%- endif %}
"""

# Thoughts between control tokens, as the system text asks for them.
BRACKETS = """{{ bos_token }}
{%- if messages[0].role != 'system' %}
    {{- '[SYSTEM_PROMPT]Think like this: [THINK]your thoughts[/THINK]your answer[/SYSTEM_PROMPT]' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'system' %}{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- else %}{{ message.content + eos_token }}{% endif %}
{%- endfor %}
"""

# Channels with headers; thoughts of the past are left out.
HARMONY = """{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- if '<|channel|>analysis<|message|>' in message.content %}{{ raise_exception('no tags please') }}{% endif %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
        {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""

ALL = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "thinking": THINKING,
    "hybrid": HYBRID,
    "opens": OPENS,
    "prefills": PREFILLS,
    "brackets": BRACKETS,
    "harmony": HARMONY,
}
