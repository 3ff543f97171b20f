"""Which calls are known to only read, by their tools' names and by the commands that they run."""

import json
from itertools import product

import pytest

from proxy.context.read_only import only_reads
from proxy.model.messages import ToolCall


def judge(name: str, **given: object) -> bool:
    return only_reads(ToolCall("c", name, json.dumps(given)))


READING = [
    "ls -la",
    'cd /x && grep -rn "foo > bar" src | head -5',
    "cat a.py 2>/dev/null; echo \"---\"; sed -n '1,40p' b.py",
    "git -C app status",
    "git --no-pager log --oneline -5",
    "git branch",
    "git diff HEAD~1 -- a.py",
    'find . -name "*.py" -exec grep -n foo {} \\; | wc -l',
    "for f in a b; do cat $f; done",
    "kubectl -n prod get pods",
    "docker compose logs web",
    "aws s3 ls s3://b",
    "aws ec2 describe-instances --region x",
    'psql "$DB" -c "SELECT * FROM t"',
    "curl -s https://x/y | jq .",
    'curl -sSL -o /dev/null -w "%{http_code}" http://x',
    "python -m pytest -x tests/ 2>&1 | tail -20",
    "python3 manage.py showmigrations",
    "source .venv/bin/activate && pytest -q",
    "FOO=1 timeout 30 pytest tests",
    "npm test -- --watch=false",
    "npx tsc --noEmit",
    "gh pr view 12",
    "gh api repos/x/y",
    'bash -lc "grep -n x y | head"',
    'echo "built $(git rev-parse HEAD)"',
    "uv run pytest",
    "xargs -n 1 grep foo",
    "cat <<< hello",
    "[ -f x ] && echo yes || echo no",
    "if [ -d src ]; then ls src; fi",
    "python --version",
    "awk '{print $1}' f",
    'cd /testbed; python -m pytest lib/tests -k "a and not b" 2>&1 | tail',
    "wc -l < a.txt",
    'search_dir "foo" src',
    "env | sort",
    "git -C sub remote -v",
    "git",
    "crontab -l",
    "/usr/bin/grep x y",
    "./gradlew test",
    "bash tests/run_tests.sh",
    "./verify.sh --fast",
    "python tests/runtests.py urls",
    "gcloud run services list",
    "command -v node",
    "black --check .",
    "find . -type f",
    "ls # rm x",
    "cat 'it''s'",
    "echo a\\ b",
    "cat < in.txt",
    "env",
    "diff <(ls a) <(ls b)",
    "sqlite3 x.db .schema",
    'echo "$(git log | head)"',
    "ls;",
    "curl -X GET https://x",
    "ruff check .",
    "# nothing but a comment\nls",
    "echo x > /dev/null",
    "make -C sub test",
]

ACTING = [
    "gh pr create --fill",
    "git push",
    "rm -rf build",
    "kubectl apply -f k8s/prod.yaml",
    "terraform apply -auto-approve",
    'psql "$DB" -c "INSERT INTO credits VALUES (7, 50)"',
    "curl -X POST https://api.example/v1/charges -d amount=5000",
    "curl https://x -d a=b",
    "curl -XDELETE https://x",
    "docker push r/app:1",
    "npm run deploy",
    "alembic upgrade head",
    "git -C app push origin main",
    "aws s3 rm s3://bucket/old --recursive",
    "systemctl restart billing",
    "python manage.py migrate",
    'python -c "print(1)"',
    "cat > a.py <<'EOF'",
    "cat <<EOF",
    "echo hi > x.txt",
    "echo hi >> x.txt",
    "sed -i s/a/b/ f",
    "sed -n 'w out' f",
    "ls && make deploy",
    "ls | xargs rm",
    "find . -delete",
    "find . -name x -exec rm {} \\;",
    "echo $(rm -rf x)",
    'echo "$(rm -rf x)"',
    "echo `touch x`",
    "./deploy.sh",
    "bash deploy.sh",
    "black .",
    "git branch new",
    "git stash",
    "sort -o a b",
    "awk '{print > \"x\"}' f",
    "curl -O https://x/y",
    "wget https://x",
    "tee x",
    "ssh host ls",
    "foo",
    "python main.py",
    "gcloud run services delete list",
    "aws",
    "bash",
    "python",
    "mount -a x",
    'echo "$(ls" x',
    "cat > $(name)",
    "./x/ls",
    "ls >",
    "ls > ;",
    "ruff check --fix",
    "eslint --fix .",
    "git remote add o u",
    "uv pip install x",
    'sqlite3 x.db "delete from t"',
    "source deploy.sh",
    "sudo -u root make install",
    "bash -lc 'git push'",
    'echo "`rm x`"',
    "",
    "   ",
    "psql -f x.sql",
]


@pytest.mark.parametrize("command", READING)
def test_commands_that_are_known_to_only_read(command: str) -> None:
    assert judge("bash", command=command)


@pytest.mark.parametrize("command", ACTING)
def test_any_other_command_counts_as_an_act(command: str) -> None:
    assert not judge("bash", command=command)


@pytest.mark.parametrize("joint", [" && ", "; ", " || ", "\n", " | "])
def test_one_act_among_commands_makes_all_an_act(joint: str) -> None:
    for reading, acting in product(READING[:12], ACTING[:12]):
        assert not judge("bash", command=f"{reading}{joint}{acting}")
        assert not judge("bash", command=f"{acting}{joint}{reading}")


@pytest.mark.parametrize(
    "wrap", ["sudo {}", "timeout 30 {}", "A=1 B=2 {}", "time {}", "for x in 1 2; do {}; done", "bash -c '{}'", "( {} )"]
)
@pytest.mark.parametrize(
    ("command", "reads"), [("git status", True), ("git push", False), ("ls", True), ("kubectl delete pod x", False)]
)
def test_what_is_put_around_a_command_does_not_change_what_it_does(wrap: str, command: str, reads: bool) -> None:
    assert judge("shell", command=wrap.format(command)) == reads


@pytest.mark.parametrize(
    "name",
    [
        "read",
        "Read",
        "Grep",
        "WebFetch",
        "web_search",
        "list_dir",
        "get_order_details",
        "git_status",
        "mcp__github__list_issues",
        "issue_read",
        "BashOutput",
        "think",
        "search_code",
        "view_image",
        "ReadFile",
        "directory_tree",
        "mcp__fs.read_file",
        "browser_snapshot",
    ],
)
def test_a_tool_that_is_named_for_it_only_reads(name: str) -> None:
    assert judge(name, path="x")


@pytest.mark.parametrize(
    "name",
    [
        "create_pull_request",
        "mcp__slack__post_message",
        "merge_pull_request",
        "transfer_funds",
        "search_replace",
        "get_or_create",
        "mark_as_read",
        "check_in",
        "write",
        "edit",
        "apply_patch",
        "Task",
        "deploy",
        "git_push",
        "Bash",
        "save_search",
        "frobnicate",
        "送信",
    ],
)
def test_any_other_tool_may_act(name: str) -> None:
    assert not judge(name, path="x")


@pytest.mark.parametrize(
    ("name", "given", "reads"),
    [
        ("git", {"command": "push"}, False),
        ("git", {"command": "status"}, True),
        ("str_replace_editor", {"command": "view", "path": "x"}, True),
        ("str_replace_editor", {"command": "create", "path": "x"}, False),
        ("TodoWrite", {"todos": [{"content": "x", "status": "pending"}]}, True),
        ("update_plan", {"plan": [{"step": "x", "status": "pending"}]}, True),
        ("update_plan", {"title": "x"}, False),
        ("execute_sql", {"sql": "SELECT 1"}, True),
        ("execute_sql", {"sql": "DROP TABLE t"}, False),
        ("query", {"sql": "delete from x"}, False),
        ("issue_write", {"method": "get"}, True),
        ("issues", {"action": "list_all"}, True),
        ("transfer", {"method": "check"}, False),
        ("fetch", {"method": "POST", "url": "x"}, False),
        ("http", {"method": "GET", "url": "x"}, True),
        ("http", {"method": "OPTIONS", "url": "x"}, True),
        ("get_weather", {"method": "hourly"}, True),
        ("shell", {"command": ["bash", "-lc", "ls | head"]}, True),
        ("shell", {"command": ["bash", "-lc", "rm x"]}, False),
        ("shell", {"command": ["grep", "it's > x", "a.py"]}, True),
        ("shell", {"commands": ["ls", "cat a"]}, True),
        ("shell", {"commands": ["ls", "rm a"]}, False),
        ("local_shell", {"action": {"command": ["ls"]}}, True),
        ("shell", {"command": [1]}, False),
        ("shell", {}, False),
    ],
)
def test_what_a_call_asks_for_counts_before_its_name(name: str, given: dict[str, object], reads: bool) -> None:
    assert judge(name, **given) == reads


@pytest.mark.parametrize(("arguments", "reads"), [("ls -la", True), ("make deploy", False), ("[1]", False)])
def test_a_command_may_be_the_whole_of_the_arguments(arguments: str, reads: bool) -> None:
    assert only_reads(ToolCall("c", "shell", arguments)) == reads


def test_what_is_too_long_or_too_deep_is_not_known() -> None:
    assert not judge("bash", command=f"echo {'x' * 30_000}")
    deep = "ls"
    for _ in range(8):
        deep = f"bash -c {json.dumps(deep)}"
    assert not judge("bash", command=deep)
