"""One scripted session and one scripted upstream: what the demonstration, the rehearsal and a trial play."""
