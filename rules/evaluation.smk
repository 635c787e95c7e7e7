rule evaluation:
    """Measure one checkpoint with one suite."""
    input:
        DAG.inputs("evaluation"),
    output:
        DAG.stamp("evaluation"),
    log:
        DAG.log("evaluation"),
    benchmark:
        DAG.benchmark("evaluation")
    conda:
        "../environment.yml"
    threads: DAG.threads("evaluation")
    resources:
        mem_mb=DAG.memory("evaluation"),
    shell:
        "{JOB} --plan {PLAN} --node evaluation --work {wildcards.work} > {log:q} 2>&1"


rule evaluation_baselines:
    """Measure xz and a token bigram on the held-out text."""
    input:
        DAG.inputs("evaluation.baselines"),
    output:
        DAG.stamp("evaluation.baselines"),
    log:
        DAG.log("evaluation.baselines"),
    benchmark:
        DAG.benchmark("evaluation.baselines")
    conda:
        "../environment.yml"
    threads: DAG.threads("evaluation.baselines")
    resources:
        mem_mb=DAG.memory("evaluation.baselines"),
    shell:
        "{JOB} --plan {PLAN} --node evaluation.baselines --work {wildcards.work} > {log:q} 2>&1"
