"""For all tests: programs that they start can be interrupted, however the tests themselves were started."""

import signal

# `nohup make test &` ignores both signals, and programs started from here would inherit that. A handler is
# not inherited, so they start with the usual behaviour, and the run itself still survives a closed terminal.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)
