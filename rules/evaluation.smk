rule evaluation:
    """Measure one checkpoint with one suite."""
    input:
        RUN.inputs("evaluation"),
    output:
        RUN.stamp("evaluation"),
    log:
        RUN.log("evaluation"),
    benchmark:
        RUN.benchmark("evaluation")
    conda:
        "../environment.yml"
    threads: RUN.threads("evaluation")
    resources:
        **RUN.resources("evaluation"),
    params:
        job=JOB,
    shell:
        "{params.job} --node evaluation --work {wildcards.work} > {log:q} 2>&1"


rule evaluation_baselines:
    """Measure xz and a token bigram on the held-out text."""
    input:
        RUN.inputs("evaluation.baselines"),
    output:
        RUN.stamp("evaluation.baselines"),
    log:
        RUN.log("evaluation.baselines"),
    benchmark:
        RUN.benchmark("evaluation.baselines")
    conda:
        "../environment.yml"
    threads: RUN.threads("evaluation.baselines")
    resources:
        **RUN.resources("evaluation.baselines"),
    params:
        job=JOB,
    shell:
        "{params.job} --node evaluation.baselines --work {wildcards.work} > {log:q} 2>&1"
